"""Tests of the hub client."""
