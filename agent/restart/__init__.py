"""Decide whether and how a container is restarted in place. Pure: frozen values and ``now`` in, a decision out."""
