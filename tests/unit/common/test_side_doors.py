"""Entering a package by the side door."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common import side_doors


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose ``__init__`` loads a heavy module, and has a light one."""
    name = "a_package_of_the_tests"
    below = tmp_path / name
    below.mkdir()
    (below / "__init__.py").write_text(f"from {name} import heavy\n")
    (below / "heavy.py").write_text("")
    (below / "light.py").write_text("VALUE = object()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for loaded in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[loaded]


def loaded(package: str) -> set[str]:
    return {name for name in sys.modules if name.partition(".")[0] == package}


def test_a_module_is_loaded_without_the_rest_of_its_package(package: str) -> None:
    with side_doors.of(package) as shells:
        light = importlib.import_module(f"{package}.light")
        assert shells[package].light is light
    assert loaded(package) == {f"{package}.light"}


def test_who_imports_the_package_later_gets_all_of_it_and_the_same_module(package: str) -> None:
    with side_doors.of(package):
        light = importlib.import_module(f"{package}.light")
    assert importlib.import_module(package).heavy
    assert importlib.import_module(f"{package}.light") is light


def test_a_package_that_is_loaded_is_left_as_it_is(package: str) -> None:
    whole = importlib.import_module(package)
    with side_doors.of(package) as shells:
        assert shells == {}
        assert sys.modules[package] is whole
    assert sys.modules[package] is whole


def test_nothing_stays_behind_when_a_module_is_not_there(package: str) -> None:
    with pytest.raises(ModuleNotFoundError), side_doors.of(package):
        importlib.import_module(f"{package}.missing")
    assert loaded(package) == set()


def test_a_package_that_is_not_there_is_named(package: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), side_doors.of(package, "no_such_package"):
        pass
    assert loaded(package) == set()
