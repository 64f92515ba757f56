"""The content of docs/performance.json in the pages and in the picture, with and without other projects."""

import json
from typing import Any

import pytest

from bench import goals
from hack import generated, performance_doc, recovery_picture

Json = dict[str, Any]

PEERS: Json = {
    "machine": {
        "day": "2026-11-29",
        "cores": 2,
        "memory_gib": 24,
        "kernel": "6.18.44",
        "python": "3.11.7",
        "load_before": 1.0,
    },
    "versions": {"Kubernetes": "v1.36.3", "JobSet": "v0.12.0", "node-problem-detector": "v1.36.0"},
    "node": {"api": "real kube-apiserver", "kubelet": "real"},
    "gang": {
        "members": 20,
        "kubemend": {"failure_to_all_running_ms": [2300.0, 2400.0, 2500.0]},
        "upstream_jobset": {"failure_to_all_running_ms": [5500.0, 26000.0, 53000.0]},
    },
    "container": {
        "kubemend_ms": [150.0, 160.0],
        "kubelet_ms": [950.0, 11000.0],
        "restart_all_containers_ms": [540.0, 800.0],
    },
    "log_line": {
        "kubemend_ms": {"p50": 12.0, "p99": 18.0, "max": 18.0},
        "node_problem_detector_ms": {"p50": 586.0, "p99": 857.0, "max": 857.0},
    },
}


@pytest.fixture
def alone() -> Json:
    report: Json = json.loads(performance_doc.SOURCE.read_text())
    report["programs"].pop("peers", None)
    return report


@pytest.fixture
def beside(alone: Json) -> Json:
    programs = {**alone["programs"], "peers": PEERS}
    return {**alone, "programs": programs, "numbers": [each.figures() for each in goals.results(programs)]}


def test_page_shows_both_sides_of_comparisons(beside: Json) -> None:
    page = performance_doc.render(beside)
    assert "| upstream JobSet v0.12.0, `InPlaceRestart` | 5.5 s, 26 s, 53 s |" in page
    assert "| **kubemend** | **2.3 s, 2.4 s, 2.5 s** |" in page
    assert "| kubelet | 950 ms, 11 s |" in page
    assert "| node-problem-detector v1.36.0 | 586 ms, 857 ms |" in page
    assert "upstream JobSet: 5.5 s, 26 s, 53 s | `python -m bench.gang`" in page


def test_page_without_peers_shows_no_figure_of_others(alone: Json) -> None:
    page = performance_doc.render(alone)
    assert "Other projects have not been measured with this release yet" in page
    assert "upstream JobSet v" not in page
    assert "recovery.svg" not in page
    assert performance_doc.files(alone)[performance_doc.PICTURE] is None


def test_page_shows_each_goal_of_the_benchmarks_also_if_none_was_measured(alone: Json) -> None:
    page = performance_doc.render({**alone, "programs": {}, "numbers": []})
    for goal in goals.GOALS:
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {goal.what} |") and goal.program in line)
        assert "| not measured |  |" in row


def test_page_shows_how_often_something_was_tried(alone: Json) -> None:
    page = performance_doc.render({**alone, "programs": {"crash": {"cases": [], "kills": 11}}})
    assert "| ≤ 0 in 500 | 0 in 11 | **no** |" in page


def test_readme_block_takes_the_place_of_the_one_before(beside: Json) -> None:
    begin, *_, end = performance_doc.block(beside).splitlines()
    new = generated.with_block(f"# Title\n{begin}\nold figures\n{end}\nrest\n", performance_doc.block(beside))
    assert new == f"# Title\n{performance_doc.block(beside)}rest\n"
    assert "docs/recovery.svg" in new
    assert generated.with_block(new, performance_doc.block(beside)) == new


def test_readme_without_a_place_for_figures_is_refused(beside: Json) -> None:
    with pytest.raises(ValueError, match="no place for figures"):
        generated.with_block("# Title\n", performance_doc.block(beside))


def test_picture_shows_both_sides_and_its_legend_covers_no_bar(beside: Json) -> None:
    pytest.importorskip("matplotlib")
    figure = recovery_picture.figure(beside)
    figure.canvas.draw()
    (axes,), (legend,) = figure.axes, figure.legends
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())
    picture = recovery_picture.draw(beside)
    for text in ("5.5 s", "26 s", "53 s", "2.3 s", "One of 20 workers fails"):
        assert text in picture


def test_picture_without_peers_is_refused(alone: Json) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        recovery_picture.draw(alone)
