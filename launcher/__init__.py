"""Run a program as a container's first process and restart it in place: one file for any image, see kubemend_run."""
