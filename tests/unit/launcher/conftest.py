"""A launcher for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.launcher.running import Running


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    try:
        yield running
    finally:
        running.close()
