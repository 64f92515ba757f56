"""Puts the agent together and runs it: the only place that knows all its parts."""

import sys

# structlog loads rich for pretty tracebacks wherever that is installed: 4 MB that an agent on every node never uses.
sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
