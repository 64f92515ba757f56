"""A launcher for each test, on the tests' own Python, and on the oldest and the newest that Debian has.

On these only the tests that are marked ``pythons`` run; in ``make test-long`` all others do.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.devnode import packages
from tests.commands.launcher.running import Running


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that starts a launcher on several Pythons."""
    if "interpreter" not in metafunc.fixturenames:
        return
    is_chosen = any(each.name == "pythons" for each in metafunc.definition.iter_markers())
    marks = [pytest.mark.devnode, *(() if is_chosen else (pytest.mark.long,))]
    others = [pytest.param(each, marks=marks) for each in packages.PYTHONS]
    metafunc.parametrize("interpreter", [pytest.param("", id="own"), *others], indirect=True)


@pytest.fixture
def interpreter(request: pytest.FixtureRequest) -> str:
    """The program of a Python."""
    return str(packages.ensure_python(request.param)) if request.param else sys.executable


@pytest.fixture
def launcher(tmp_path: Path, interpreter: str) -> Iterator[Running]:
    running = Running(tmp_path, interpreter)
    try:
        yield running
    finally:
        running.close()
