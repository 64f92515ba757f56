"""Shared modules of the agent and the controller. They import nothing from either."""
