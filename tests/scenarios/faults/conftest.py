"""Run the fault suite once, in its short form, as a program: the result of each fault is a scenario of its own."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from hack.devnode import processes
from tests import machine

_SECONDS = 900.0
"""A quiet machine needs a tenth of it."""


@pytest.fixture(autouse=True)
def kernel_log_of_its_own() -> None:
    """The suite has nodes of its own: none is needed here."""


@pytest.fixture(scope="package")
def printed() -> Mapping[str, Any]:
    """The output of the suite, with its ``status``."""
    machine.must_run_containers()
    command = [sys.executable, "-m", "bench.faults", "--short"]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=processes.source_environment()
    )
    assert run.stdout, run.stderr
    return {**json.loads(run.stdout), "status": run.returncode, "stderr": run.stderr}
