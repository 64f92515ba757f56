"""Leader election, and the leader's epoch."""
