"""Run the command as ``python -m cli``."""

from cli import main

main(prog_name="kubemend")
