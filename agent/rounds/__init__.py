"""Run this node's members of gang rounds: hold and release them as the controller orders."""
