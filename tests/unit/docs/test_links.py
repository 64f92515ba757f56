"""Every link of the pages leads somewhere: to a file, and to a heading in it."""

import re
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.unit.docs import pages

_CODE: Final = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?:\]\(|(?:src|href)=\")([^)\"\s]+)")
_HEADING: Final = re.compile(r"^#{1,6} +(.*?) *$", re.MULTILINE)


def links(text: str) -> list[str]:
    """Return the relative links of a page, those to its own headings included."""
    return [link for link in _LINK.findall(_CODE.sub("", text)) if not re.match(r"[a-z]+:", link)]


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    made: set[str] = set()
    for heading in _HEADING.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        made.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return made


@pytest.mark.parametrize("page", pages.ALL, ids=pages.name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [link for link in links(page.read_text("utf-8")) if not leads_somewhere(page, link)]
    assert broken == []


def leads_somewhere(page: Path, link: str) -> bool:
    """Return whether the file of a link exists, and its heading in it."""
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return False
    return not anchor or (target.suffix == ".md" and anchor in anchors(target.read_text("utf-8")))


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, ahead = set[Path](), [pages.ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        ahead += [(page.parent / link.partition("#")[0]).resolve() for link in links(page.read_text("utf-8"))]
    assert reached >= set(pages.ALL)


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("## Install, upgrade, uninstall", "install-upgrade-uninstall"),
        ("### Controller: ClusterRole `kubemend-controller`", "controller-clusterrole-kubemend-controller"),
        ("# The [catalog](catalog.md)'s codes", "the-catalogs-codes"),
    ],
)
def test_anchors_are_as_github_makes_them(heading: str, anchor: str) -> None:
    assert anchors(heading) == {anchor}


def test_the_second_of_two_headings_has_a_number() -> None:
    assert anchors("# One\n## One\n```\n# no heading\n```\n") == {"one", "one-1"}


def test_links_in_code_do_not_count() -> None:
    assert links("[a](b.md) `[c](d.md)` [e](https://f) ![g](h.svg)\n```\n[i](j)\n```\n") == ["b.md", "h.svg"]
