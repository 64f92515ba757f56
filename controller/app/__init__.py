"""The controller process: its parts wired together, and what it serves."""
