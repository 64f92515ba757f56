"""The container runtime over CRI: where it is, what it can do, its calls and its events as values of ours."""
