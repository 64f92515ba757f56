"""Count the modules that a reader passes who follows one action through the code: ``python -m tests.walks``."""
