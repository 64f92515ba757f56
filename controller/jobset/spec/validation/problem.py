"""Define a problem of a JobSet."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: the field's ``path`` (``spec.replicatedJobs[0].name``), the ``message`` and the ``hint``."""

    path: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}; {self.hint}"
