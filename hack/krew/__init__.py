"""Package ``kubectl mend`` for krew, kubectl's plugin manager."""
