"""Pages name all reasons, annotations and fields that the code shows to operators."""

import ast
import importlib
import re
from collections.abc import Iterator

from kubemend.agent.restart import options
from kubemend.controller.gangs.members import Bar
from kubemend.controller.hub import refusals
from tests.unit.docs import pages

OPERATIONS = (pages.ROOT / "docs" / "operations.md").read_text("utf-8")
TROUBLESHOOTING = (pages.ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
NO_ALERT = {refusals.Reason.STANDBY.value, refusals.Reason.REVIEW_FAILED.value}


def section(page: str, title: str) -> str:
    return re.split(r"^##+ ", page.partition(f" {title}\n")[2], flags=re.MULTILINE)[0]


def reasons_of_rounds() -> Iterator[str]:
    """Yield the reasons that ``controller.rounds`` gives members and rounds."""
    for path in (pages.ROOT / "controller" / "rounds").glob("*.py"):
        module = importlib.import_module(f"kubemend.controller.rounds.{path.stem}")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.keyword(arg="reason", value=ast.Constant(value=str() as reason)) if reason:
                    yield reason
                case ast.keyword(arg="reason", value=ast.Name(id=name)) if name.isupper():
                    yield getattr(module, name)


def test_operations_has_each_reason_of_rounds() -> None:
    reasons = {*reasons_of_rounds(), *(bar.value for bar in Bar)}
    assert {"StopDeadline", "NoAnswer"} < reasons
    assert reasons <= set(re.findall(r"`(\w+)`", section(OPERATIONS, "Reasons")))


def test_runbook_has_each_reason_of_the_hub_that_alerts() -> None:
    alerting = {reason.value for reason in refusals.Reason} - NO_ALERT
    assert alerting == set(re.findall(r"`([A-Z]\w+)`", section(TROUBLESHOOTING, "KubemendHubRefuses")))


def test_troubleshooting_has_each_event_of_level_error() -> None:
    errors = re.findall(r"^\| `(.*?)` \| error \|", (pages.ROOT / "docs" / "logs.md").read_text("utf-8"), re.MULTILINE)
    named = re.findall(r"`([a-z_]+\.[a-z_]+)`", section(TROUBLESHOOTING, "The log has errors"))
    assert sorted(errors) == sorted(named)


def test_operations_has_each_annotation() -> None:
    ours = {*options.USED, options.CACHE_SIZE, options.LAUNCHER, options.LAUNCHER_OPTIONS} - {options.RESTARTS}
    rows = re.findall(r"^\| (`.*?`) \|", section(OPERATIONS, "Annotations"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w-]+)", row)}
    assert {name.removeprefix(options.PREFIX) for name in ours} | {"hold", "owner-recreates-pods"} == named


def test_operations_has_each_field_of_a_restarts_progress() -> None:
    (paragraph,) = re.findall(r"^`--json` prints .*?\n\n", OPERATIONS, re.MULTILINE | re.DOTALL)
    tree = ast.parse((pages.ROOT / "agent" / "control" / "events.py").read_text("utf-8"))
    dictionaries = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    keys = {key.value for each in dictionaries for key in each.keys if isinstance(key, ast.Constant)}
    assert keys <= set(re.findall(r"\w+", paragraph))
