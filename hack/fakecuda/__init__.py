"""Provide a fake ``libcuda.so.1`` in C, controlled from outside: it runs kubemend's own kernels, right or wrong."""
