"""What is wrong with a JobSet."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing: the field's ``path`` (``spec.replicatedJobs[0].name``), what is wrong there, and the ``mend``."""

    path: str
    message: str
    mend: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}; {self.mend}"
