"""Restart objects: requests, and the record of every round."""
