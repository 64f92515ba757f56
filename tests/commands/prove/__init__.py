"""Run `kubemend prove` on a machine with fake GPUs."""
