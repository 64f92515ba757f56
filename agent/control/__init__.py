"""The agent's control socket: the messages shared by both ends, and the client that ``kubemend restart`` uses."""
