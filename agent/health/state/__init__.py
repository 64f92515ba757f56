"""Fold findings into one verdict for each device, and attribute them to containers. Pure."""
