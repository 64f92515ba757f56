"""``python -m agent.cli``."""

from kubemend.agent.cli import main

main()
