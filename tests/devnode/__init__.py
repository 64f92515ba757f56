"""Additions of the tests to the dev node (``hack.devnode``): programs next to it, and pods without a kubelet."""
