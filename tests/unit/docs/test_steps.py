"""The content of docs/steps.json in the page, in README.md and in the picture."""

from typing import Any

import pytest

from bench.steps import recovery
from hack import generated, steps_doc

Json = dict[str, Any]


def way(what: str, seconds: float, ratio: float, *, fault: str = "exit") -> Json:
    stages = dict.fromkeys(recovery.STAGES, 0.0) | {"restart": seconds - 1.0, "step": 1.0}
    return {
        "what": what,
        "fault": fault,
        "first_step_s": seconds,
        "new_step_s": seconds + 0.5,
        "steps_lost": 5,
        "stages_s": stages,
        "each_first_step_s": [seconds, seconds],
        "each_new_step_s": [seconds + 0.5, seconds + 0.5],
        "total_s": 30.0,
        "ratio": ratio,
    }


@pytest.fixture
def report() -> Json:
    return {
        "machine": {"cores": 2, "memory_gib": 24, "kernel": "6.1", "python": "3.11", "load_before": 0.1},
        "versions": {"Kubernetes": "v1.36.3"},
        "layers": 32,
        "steps_between_faults": 95,
        "ways": {
            "kubelet": way("kubelet restarts the container", 90.0, 30.0),
            "process": way("a loop", 3.0, 1.0),
            "spare": way("kubemend's launcher", 2.0, 0.667),
        },
    }


def test_page_and_readme_have_every_way_with_its_ratio(report: Json) -> None:
    page, readme = steps_doc.render(report), steps_doc.block(report)
    assert "| kubelet restarts the container | 90 s (90, 90) | 90.5 s | 30.00 | 30 s |" in page
    assert "| kubelet restarts the container | 90 s | 90, 90 s | 30.00 |" in readme
    assert "| **kubemend's launcher** | 2 s (2, 2) | 2.5 s | 0.67 | 30 s |" in page
    assert "| **kubemend's launcher** | 2 s | 2, 2 s | 0.67 |" in readme
    assert "| seconds | restart | step |" in steps_doc.render(report), "no column for a stage that takes no time"
    assert "| `spare` | 1 | 1 |" in steps_doc.render(report)


def test_page_and_readme_have_the_ways_of_a_later_run_with_its_own_loop(report: Json) -> None:
    ways = {"process": way("a loop", 4.0, 1.0), "spare-prepared": way("kubemend's launcher, prepared", 1.5, 0.375)}
    report["prepared"] = {"machine": report["machine"], "steps_between_faults": 45, "ways": ways}
    page, readme = steps_doc.render(report), steps_doc.block(report)
    assert "| a loop | 4 s (4, 4) | 4.5 s | 1.00 | 30 s |" in page
    assert "| a loop | 4 s | 4, 4 s | 1.00 |" in readme
    assert "| **kubemend's launcher, prepared** | 1.5 s (1.5, 1.5) | 2 s | 0.38 | 30 s |" in page
    assert "| **kubemend's launcher, prepared** | 1.5 s | 1.5, 1.5 s | 0.38 |" in readme
    assert "after 1.5 s" in readme, "the headline"
    assert "after 4 s" in readme, "what it is compared with"
    assert "| `spare-prepared` | 0.5 | 1 |" in steps_doc.render(report)


def test_page_and_readme_have_the_ways_of_gangs_where_they_were_measured(report: Json) -> None:
    assert "rendezvous" not in steps_doc.render(report)
    recreate = way("upstream's controller", 60.0, 20.0)
    recreate["stages_s"] |= {"rendezvous": 0.25}
    report["gang"] = {
        "members": 4,
        "layers": 8,
        "ways": {"gang-recreate": recreate, "gang-kubemend": way("kubemend's round", 3.0, 1.0)},
    }
    page, readme = steps_doc.render(report), steps_doc.block(report)
    assert "| upstream's controller | 60 s (60, 60) | 60.5 s | 20.00 | 30 s |" in page
    assert "| upstream's controller | 60 s | 60, 60 s | 20.00 |" in readme
    assert "| **kubemend's round** | 3 s (3, 3) | 3.5 s | 1.00 | 30 s |" in page
    assert "| **kubemend's round** | 3 s | 3, 3 s | 1.00 |" in readme
    assert "| seconds | restart | rendezvous | step |" in steps_doc.render(report)
    assert "| `gang-recreate` | 59 | 0.25 | 1 |" in steps_doc.render(report)
    assert "4 pods train" in steps_doc.render(report)
    assert "all members have a spare" not in steps_doc.render(report)
    report["gang"]["ways"]["gang-launchers"] = way("kubemend's round has launchers", 2.0, 1.0)
    report["gang"]["machine"] = {**report["machine"], "load_before": 0.75}
    for text in ("all members have a spare", "load 0.75 before the run"):
        assert text in steps_doc.render(report)


@pytest.fixture
def other_faults(report: Json) -> Json:
    """A report with hangs, after which a loop does nothing, and with lost nodes."""
    run = {each: report[each] for each in ("machine", "layers", "steps_between_faults")}
    unseen = {"what": "a loop", "fault": "hang", "none": "never"}
    hang = {"kubelet": way("kubelet restarts", 15.0, 1.0, fault="hang"), "process": unseen}
    lost = {"gang-kubemend": way("kubemend's round", 25.0, 1.0, fault="lost-node")}
    noticed = {"gang-kubemend": way("kubemend's round", 9.0, 1.0, fault="noticed-node")}
    return {
        **report,
        "hang": {**run, "ways": hang},
        "lost-node": {**run, "gang": {"members": 4, "layers": 8, "ways": lost}},
        "noticed-node": {**run, "gang": {"members": 4, "layers": 8, "ways": noticed}},
    }


def test_page_has_the_other_faults_and_marks_those_without_a_restart(report: Json, other_faults: Json) -> None:
    assert "hang |" not in steps_doc.render(report)
    shown = steps_doc.render(other_faults)
    assert "| kubelet restarts | 15 s (15, 15) | 15.5 s | 1.00 | 30 s |" in shown
    assert "| a loop | never | – | – | – |" in shown
    assert "| **kubemend's round** | 25 s (25, 25) | 25.5 s | 1.00 | 30 s |" in shown
    assert "| **kubemend's round** | 9 s (9, 9) | 9.5 s | 1.00 | 30 s |" in shown


def test_picture_has_a_part_for_each_fault(report: Json, other_faults: Json) -> None:
    before, shown = steps_doc.draw(report), steps_doc.draw(other_faults)
    for text in (": hang", "15 s", ": lost-node", "25 s", ": noticed-node", "9 s"):
        assert text in shown
        assert text not in before
    assert shown.count("…") == 1, "only the part with a loop has a bar that is cut"


def test_picture_has_the_seconds_of_every_way_and_cuts_long_bars(report: Json) -> None:
    shown = steps_doc.draw(report)
    assert all(label in shown for label in steps_doc.labels(report))
    assert shown.count("…") == 1, "only kubelet's bar is longer than four times the loop's"


def test_page_shown_by_another_report_is_stale(report: Json, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAGE", "PICTURE", "README"):
        monkeypatch.setattr(steps_doc, name, tmp_path / name)
    steps_doc.PAGE.write_text(steps_doc.render(report))
    steps_doc.PICTURE.write_text(steps_doc.draw(report))
    steps_doc.README.write_text(steps_doc.block(report))
    assert generated.stale(steps_doc.files(report)) == []
    report["ways"]["spare"]["first_step_s"] = 2.1
    assert generated.stale(steps_doc.files(report)) == [steps_doc.PAGE, steps_doc.README, steps_doc.PICTURE]


def test_table_names_the_faults_where_they_differ(report: Json) -> None:
    report["ways"]["agent-process"] = way("kubemend's agent", 1.5, 0.5, fault="Xid 31")
    shown = steps_doc.render(report)
    assert "| kubelet restarts the container | exit | 90 s (90, 90) | 90.5 s | 30.00 | 30 s |" in shown
    assert "| **kubemend's agent** | Xid 31 | 1.5 s (1.5, 1.5) | 2 s | 0.50 | 30 s |" in shown
