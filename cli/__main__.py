"""Run the command as ``python -m cli``."""

from kubemend.cli import main

main(prog_name="kubemend")
