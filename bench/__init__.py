"""Benchmarks: each prints one JSON object; both sides of a ratio are measured in one run on one machine."""
