"""Benchmarks: each prints one JSON object; ratios are taken side by side in one run on one machine."""
