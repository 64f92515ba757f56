"""Brings it together: findings become verdicts, verdicts conditions, and app-class faults restarts."""
