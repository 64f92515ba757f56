"""A fake ``libnvidia-ml.so.1`` in C, driven from outside while a client of the real pynvml runs on it."""
