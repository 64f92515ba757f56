"""Run `kubemend scan` on a machine of stand-ins."""
