"""Decide about a fault: one pure function, one answer with its reason."""
