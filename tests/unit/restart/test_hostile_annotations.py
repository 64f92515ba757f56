"""Any annotations of a pod are parsed, or refused with a message, and affect no other pod."""

import asyncio
import contextlib
import math
from dataclasses import replace
from typing import Any, Final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.model import conditions
from kubemend.agent.model.workloads import ContainerRef, ContainerState, PodUid, PodView, SandboxView
from kubemend.agent.restart import admission, counts, options, overrides
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts.budgets import BudgetGauges, Budgets
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.requests import Request
from kubemend.agent.restarts.scheduler import Limits, RestartScheduler
from kubemend.common import budgets, contained
from tests.environments import node
from tests.fakes import outside
from tests.unit.restart import builders

TARGET: Final = builders.TARGET
OTHER: Final = ContainerRef(replace(builders.POD, name="other", uid=PodUid("uid-2")), "trainer")
CAUSE: Final = admission.Cause(code="Xid31", message="Xid 31", happened_at=100.0)
NAMES: Final = ("restart", "strategy", "containers", "grace-period", "max-restarts", "heartbeat-file")
MORE_NAMES: Final = ("heartbeat-timeout", "clean", "fatal-exit-codes", "hold", "gang", "restart-id", "overlap")

words = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)
telling = st.sampled_from(
    [
        "InPlace", "swap", "rerun", "reset", "rules", "auto", "trainer", "trainer,", ",,,", "shm", "shm,shm", "imports",
        "1", "0",
        "-0", "1e308", "1e999", "nan", "inf", "-1", "9" * 9, "9" * 5000, "٣", "1_0", "0x1", "1s", "1h", "1ms", "h",
        "/", "//", "/a", "/a/../b", "/a\0b", "a" * 100_000, "\r\n", "\x1b[31m", "\u202e", "{}", "[" * 1000, "%s%n", " ",
    ]
)  # fmt: skip
keys = st.sampled_from([options.PREFIX + name for name in (*NAMES, *MORE_NAMES)]) | words
hostile = st.dictionaries(keys, telling | words, max_size=8)
opted_in = hostile.map(lambda each: {**each, options.RESTART: options.IN_PLACE})


@given(hostile | opted_in)
@example({options.MAX_RESTARTS: "9" * 5000})
@example({options.GRACE_PERIOD: "9" * 400})
@example({options.HEARTBEAT_FILE: "/a", options.HEARTBEAT_TIMEOUT: "nan"})
def test_any_annotations_are_parsed_or_refused(annotations: dict[str, str]) -> None:
    pod = builders.pod(annotations=annotations)
    try:
        found = options.parse(annotations)
    except options.BadAnnotationError as error:
        reason = str(error)
    else:
        reason = ""
    if reason:
        assert len(reason) < 10_000
        refused = admission.no_fault_reason(pod, TARGET.name, opted_in_namespaces=frozenset({"default"}))
        assert refused is not None
        assert refused.reason is Reason.BAD_ANNOTATION
        return
    assert 0 <= found.grace_seconds <= options.LONGEST_GRACE
    assert found.heartbeat is None or math.isfinite(found.heartbeat.timeout)
    with contextlib.suppress(overrides.AmbiguousTargetError):
        assert pod.container(overrides.container(pod, overrides.RestartOverrides())) is not None


@given(hostile | opted_in)
def test_remaining_budget_can_always_be_shown(annotations: dict[str, str]) -> None:
    pods = outside.Pods(builders.pod(annotations=annotations), builders.pod(ref=OTHER.pod))
    kept: Any = None
    taken = Budgets(store=kept, now=lambda: 100.0, storm=budgets.Window(limit=60, seconds=300.0))
    for ref in (TARGET, OTHER):
        counted = counts.Begun(ref.pod.uid, frozenset({ref.name}), at=99.0, fault_at=98.0, device=None)
        taken._about_to_begin.append(counted)
        taken.keep(counted)
    families = {family.name: family for family in BudgetGauges(taken, pods=pods, now=lambda: 100.0).collect()}
    shown = {sample.labels["pod"] for sample in families["kubemend_restart_budget_left"].samples}
    assert "other" in shown


class Runtime:
    """One container in each pod, whose config is not available."""

    async def list_containers(self, *, pod_uid: Any = None, name: Any = None, sandbox_id: Any = None) -> Any:
        ref = TARGET if pod_uid == TARGET.pod.uid else OTHER
        return (replace(builders.view("old"), ref=ref),)

    async def list_sandboxes(self, *, pod_uid: Any = None) -> Any:
        ref = TARGET if pod_uid == TARGET.pod.uid else OTHER
        return (SandboxView(id=builders.SANDBOX, pod=ref.pod, ready=True, created_at=1, annotations={}),)

    async def cached_status(self, view: Any, **_: Any) -> ContainerStatus:
        return ContainerStatus(
            id=view.id,
            ref=view.ref,
            attempt=0,
            state=ContainerState.RUNNING,
            created_at=1,
            started_at=1,
            finished_at=0,
            exit_code=0,
            reason="",
            message="",
            log_path="",
            annotations={},
        )


async def both_asked_for(pod: PodView) -> outside.Conditions:
    """Request restarts of a hostile pod and of another one, from an agent in dry-run mode."""
    said, never_used = outside.Conditions(), None
    everything = Dependencies(
        runtime=Runtime(),  # type: ignore[arg-type]
        events=outside.Events(),
        pods=outside.Pods(pod, builders.pod(ref=OTHER.pod)),
        devices=outside.Devices(),
        owners=outside.Owners(),
        reporter=said,
        processes=outside.Processes(),
        actuators=never_used,  # type: ignore[arg-type]
    )
    restarts = RestartScheduler(
        dependencies=everything,
        store=Journal(),  # type: ignore[arg-type]
        metrics=node.metrics(),
        now=lambda: 100.0,
        dry_run=True,
        limits=Limits(retry_seconds=0.0),
    )
    for ref in (TARGET, OTHER):
        await restarts.submit(Request(target=ref, cause=lambda: CAUSE, devices=frozenset()))
    return said


class Journal:
    """A history without restarts."""

    async def begun_since(self, _: float) -> tuple[counts.Begun, ...]:
        return ()

    async def unreadable_counts(self, _: float) -> tuple[str, ...]:
        return ()


@given(hostile | opted_in)
@settings(max_examples=60)
def test_any_annotations_get_a_decision_and_affect_no_other_pod(annotations: dict[str, str]) -> None:
    before = contained.count()
    said = asyncio.run(both_asked_for(builders.pod(annotations=annotations)))
    assert contained.count() == before, "a defect"
    assert said.said[OTHER.pod, conditions.IN_PLACE_RESTART].reason == Reason.DRY_RUN.value
    if (reported := said.said.get((TARGET.pod, conditions.IN_PLACE_RESTART))) is not None:
        assert reported.reason != Reason.INTERNAL.value
        assert len(reported.message) < 10_000
