"""Generated files are current, complete for kustomize and Grafana, and their links are valid."""

import json
import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from hack import monitoring, monitoring_dashboard
from hack.monitoring import ROOT

WRITTEN: Final = ("docs/troubleshooting.md", "docs/metrics.md", "docs/logs.md")


@pytest.mark.parametrize("path", monitoring.pages(), ids=str)
def test_generated_files_are_current(path: Path) -> None:
    assert (ROOT / path).read_text("utf-8") == monitoring.pages()[path], "run python -m hack.monitoring"


def test_the_dashboard_is_what_grafana_reads() -> None:
    config = yaml.safe_load((ROOT / monitoring.COMPONENT / "dashboard.yaml").read_text())
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    (text,) = config["data"].values()
    dashboard = json.loads(text)
    assert dashboard == monitoring_dashboard.dashboard()
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers) > 30
    assert {each["name"] for each in dashboard["templating"]["list"]} >= {*monitoring_dashboard.VARIABLES, "datasource"}


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in monitoring_dashboard.dashboard()["panels"]:
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
    known = {*monitoring_dashboard.VARIABLES, "__range"}
    for row in monitoring_dashboard.ROWS:
        for panel in row.panels:
            for query in panel.queries:
                assert set(re.findall(r"\$(\w+)", query.expr)) <= known


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
