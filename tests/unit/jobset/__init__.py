"""Decisions about JobSets."""
