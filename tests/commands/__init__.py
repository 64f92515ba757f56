"""Run the commands as programs."""
