"""The agent's end of the hub."""
