"""Which replica leads, and its epoch."""
