"""Puts the agent together and runs it: the only place that knows all its parts."""
