"""One hand-written stand-in per boundary."""
