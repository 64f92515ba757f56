"""Generated files are made by make, checked by lint, and listed for contributors."""

import re
from typing import Final

import pytest

from tests.unit.docs import pages

GENERATORS: Final = sorted(
    path.parent.stem if path.stem == "__main__" else path.stem
    for path in (pages.ROOT / "hack").glob("**/*.py")
    if '"--check"' in path.read_text("utf-8")
)


def test_make_knows_every_generator() -> None:
    made = re.search(r"^GENERATORS := (.*)$", (pages.ROOT / "Makefile").read_text(), re.MULTILINE)
    assert made is not None
    assert sorted(made[1].split()) == GENERATORS
    assert len(GENERATORS) > 1


@pytest.mark.parametrize("generator", GENERATORS)
def test_it_is_documented_for_contributors(generator: str) -> None:
    page = (pages.ROOT / "CONTRIBUTING.md").read_text()
    assert f"`python -m hack.{generator}`" in page.partition("## Generated files")[2]
