"""Provide a fake ``libnvidia-ml.so.1`` in C, controlled from outside while a client of the real pynvml uses it."""
