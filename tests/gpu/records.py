"""Collect what a real GPU showed, for the end of the test run: test data for developers without one.

They are printed as one JSON line, and written to ``$KUBEMEND_GPU_RECORDS`` if that is set: ``faults.json`` and
``kernel-log.txt`` in the form of the records in ``tests/unit/faults``, ``restarts.json``, and ``measured.json``.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "KUBEMEND_GPU_RECORDS"
_MICROSECONDS: Final = 1_000_000


@dataclass
class Records:
    """The records so far. ``kernel_log`` are raw records (Documentation/ABI/testing/dev-kmsg)."""

    faults: dict[str, Any] = field(default_factory=dict)
    restarts: list[dict[str, Any]] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    kernel_log: list[str] = field(default_factory=list)

    @property
    def as_json(self) -> dict[str, Any]:
        """Return all of them."""
        return {
            "faults": self.faults,
            "restarts": self.restarts,
            "measured": self.measured,
            "kernel_log": [printed(each) for each in self.kernel_log],
        }

    def write(self) -> None:
        """Write the files, if wanted: after each test, so that a run that is cut off leaves what it has."""
        if not (where := os.environ.get(VARIABLE)):
            return
        directory = Path(where)
        directory.mkdir(parents=True, exist_ok=True)
        for name in ("faults", "restarts", "measured"):
            (directory / f"{name}.json").write_text(json.dumps(getattr(self, name), indent=1) + "\n")
        (directory / "kernel-log.txt").write_text("".join(f"{printed(each)}\n" for each in self.kernel_log))


def printed(record: str) -> str:
    """Return a raw record as dmesg prints it."""
    prefix, _, text = record.partition(";")
    stamp = int(prefix.split(",")[2])
    return f"[{stamp / _MICROSECONDS:12.6f}] {text}"


RECORDS: Final = Records()
"""Those of this run."""
