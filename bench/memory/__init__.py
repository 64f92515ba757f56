"""Measure the memory that agent and controller need for many pods, and for pods as large as possible."""
