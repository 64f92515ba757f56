"""Access the container runtime over CRI: find its socket and capabilities, make its calls, and read its events."""
