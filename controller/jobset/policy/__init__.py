"""The policies of a JobSet: failure, success, startup, suspension, TTL, restarts in place. Pure."""
