"""A machine to prove."""

from tests.unit.prove.conftest import large_machine, libraries, machine

__all__ = ["large_machine", "libraries", "machine"]
