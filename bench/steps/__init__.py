"""Measure the time from a fault to the next training step, for each way to restart a trainer."""
