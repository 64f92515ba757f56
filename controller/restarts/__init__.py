"""Restart objects: the requests of people, and the record of every round."""
