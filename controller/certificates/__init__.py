"""The hub's certificates: creation, rotation and publication of their CAs."""
