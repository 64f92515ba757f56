"""docs/platforms.md names the tests that prove its rows, and the versions that they run."""

import re
from pathlib import Path
from typing import Final

from tests.platforms import controllers
from tests.unit.docs import pages

_PAGE: Final = pages.ROOT / "docs" / "platforms.md"
_TESTS: Final = pages.ROOT / "tests"


def defined(under: Path) -> set[str]:
    """Return the names of the test functions in a directory."""
    files = (path.read_text("utf-8") for path in under.rglob("test_*.py"))
    return {name for text in files for name in re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE)}


def test_each_test_next_to_a_controller_is_named_and_each_named_test_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", _PAGE.read_text("utf-8")))
    assert defined(_TESTS / "platforms") <= named
    assert named <= defined(_TESTS)


def test_each_section_about_an_owner_of_the_table_names_a_test() -> None:
    _, *sections = _PAGE.read_text("utf-8").split("\n## ")
    assert len(sections) > len(controllers.ALL)
    assert [each.partition("\n")[0] for each in sections if not re.search(r"`test_\w+`", each)] == []


def test_versions_are_those_that_the_tests_run() -> None:
    text = _PAGE.read_text("utf-8")
    assert [each.name for each in controllers.ALL if f"| {each.module.version[1:]} |" not in text] == []
