"""Speak with the launcher that is a container's main process (``launcher/kubemend_run.py``)."""
