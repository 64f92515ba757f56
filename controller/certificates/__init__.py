"""The hub's certificates: made, rotated, and their CA published."""
