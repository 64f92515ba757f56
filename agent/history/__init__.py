"""What the agent must not forget when it dies: open intents, the kernel-log cursor, restarts, verdicts."""
