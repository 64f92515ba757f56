"""Results of an examination, as values."""

import enum
from dataclasses import dataclass
from typing import Final

EXIT_WORKS: Final = 0
"""Everything works, perhaps with a warning, or is not needed on this node."""

EXIT_DOES_NOT_WORK: Final = 1
"""A check failed or was inconclusive."""


class Result(enum.Enum):
    """The result of a check. ``WARN``: it works, with a relevant limit. ``UNKNOWN`` never counts as working."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    NOT_NEEDED = "not-needed"

    @property
    def works(self) -> bool:
        """Whether no action is needed."""
        return self not in (Result.FAIL, Result.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. ``what`` describes the result in one line, ``hint`` how to fix it."""

    name: str
    result: Result
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of a node, in the order of their dependencies."""

    node: str
    checks: tuple[Check, ...]

    @property
    def works(self) -> bool:
        """Whether everything works."""
        return all(check.result.works for check in self.checks)

    @property
    def exit_code(self) -> int:
        """The exit code of ``kubemend doctor``: ``EXIT_WORKS`` or ``EXIT_DOES_NOT_WORK``."""
        return EXIT_WORKS if self.works else EXIT_DOES_NOT_WORK
