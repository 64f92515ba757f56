"""Count the modules through which an action goes, and which its reader opens: ``python -m tests.walks``."""
