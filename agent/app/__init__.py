"""Assemble and run the agent: the only package that knows all its components."""

import sys

# structlog loads rich for pretty tracebacks where it is installed: 4 MB that an agent never uses.
sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
