"""Generated files are current, complete for kustomize and Grafana, and their links are valid."""

import re
from pathlib import Path
from typing import Final

import pytest

from hack import monitoring
from hack.monitoring import ROOT
from tests.unit.monitoring.component import CONFIG_MAP, DASHBOARD, PANELS, QUERIES, VARIABLES

WRITTEN: Final = ("docs/troubleshooting.md", "docs/metrics.md", "docs/logs.md")


def test_generated_files_are_current() -> None:
    pages = monitoring.pages()
    assert {path.name for path in pages} == {"rules.yaml", "metrics.md", "logs.md"}
    for path, text in pages.items():
        assert path.read_text("utf-8") == text, "run python -m hack.monitoring"


def test_the_dashboard_is_what_grafana_reads() -> None:
    assert CONFIG_MAP["metadata"]["labels"]["grafana_dashboard"] == "1"
    numbers = [panel["id"] for panel in PANELS]
    assert len(set(numbers)) == len(numbers) > 30
    assert [each["name"] for each in DASHBOARD["templating"]["list"]] == ["datasource", *VARIABLES]


def test_queries_of_a_panel_have_letters_of_their_own_and_the_chosen_data_source() -> None:
    for panel in PANELS:
        targets = panel.get("targets", [])
        assert [each["refId"] for each in targets] == list("ABCDEFG"[: len(targets)]), panel["title"]
        assert {each["datasource"]["uid"] for each in targets} <= {"${datasource}"}
        assert {each["instant"] for each in targets} <= {panel["type"] in ("stat", "table")}


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (left, top)
            for left in range(place["x"], place["x"] + place["w"])
            for top in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_every_variable_of_an_expression_is_one_of_the_dashboards() -> None:
    used = {name for query in QUERIES for name in re.findall(r"\$(\w+)", query.expr)}
    assert used == {*VARIABLES, "__range"}


@pytest.mark.parametrize("page", WRITTEN)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([\w./-]*)(#[\w-]+)?\)", (ROOT / page).read_text())
    assert links
    for path, anchor in links:
        target = ROOT / "docs" / path if path else ROOT / page
        assert target.exists(), path
        assert not anchor or anchor.removeprefix("#") in anchors(target), f"{path}{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as Git hosts make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}
