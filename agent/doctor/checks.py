"""What an examination finds, as values."""

import enum
from dataclasses import dataclass
from typing import Final

EXIT_WORKS: Final = 0
"""Everything works, perhaps with a warning, or is not needed on this node."""

EXIT_DOES_NOT_WORK: Final = 1
"""Something does not work, or it could not be told whether it does."""


class Result(enum.Enum):
    """How one thing does. ``WARN``: it works, with a limit that is worth knowing. ``UNKNOWN`` is never "it works"."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    NOT_NEEDED = "not-needed"

    @property
    def works(self) -> bool:
        """Whether nobody has to do anything."""
        return self not in (Result.FAIL, Result.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. ``what`` says in one line what was found and where, ``mend`` what to do about it."""

    name: str
    result: Result
    what: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found on a node, in the order in which one thing needs another."""

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
