"""Persist the agent's state: open intents, the kernel-log cursor, restarts, verdicts."""
