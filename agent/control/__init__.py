"""The agent's control socket as both its ends know it: the messages, and the client that ``kubemend restart`` is."""
