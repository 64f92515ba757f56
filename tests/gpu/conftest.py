"""Print what a real GPU showed, and write it where the environment asks for it."""

import json
from collections.abc import Iterator

import pytest

from tests.gpu.records import RECORDS


@pytest.fixture(autouse=True)
def _records_are_written() -> Iterator[None]:
    """A run that is cut off leaves the records of the tests before."""
    yield
    RECORDS.write()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print all records, if there are any."""
    found = RECORDS.as_json
    if any(found.values()):
        terminalreporter.write_sep("=", "what the GPU showed")
        terminalreporter.write_line(json.dumps(found))
