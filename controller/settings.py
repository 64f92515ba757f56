"""The controller's settings."""
