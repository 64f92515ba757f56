"""Build kubemend's image from the Dockerfile on a machine without Docker and without a registry."""
