"""Decide which container exits are a fault of the member."""

from dataclasses import replace
from typing import Any

import pytest

from kubemend.agent.hub import exits
from kubemend.agent.hub.exits import Exit, NoFault
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ContainerSummary,
    PodView,
    SandboxId,
)
from kubemend.agent.restart.reasons import Reason
from tests.unit.hub import builders


def view(
    identity: str,
    *,
    name: str = "trainer",
    attempt: int = 0,
    state: ContainerState = ContainerState.EXITED,
    restart_id: str | None = None,
) -> ContainerSummary:
    return ContainerSummary(
        id=ContainerId(identity),
        ref=ContainerRef(builders.ref(0), name),
        sandbox_id=SandboxId("s"),
        attempt=attempt,
        state=state,
        created_at=attempt,
        restart_id=restart_id,
    )


def no_fault(
    pod: PodView,
    *,
    code: int = 1,
    ended: ContainerSummary | None = None,
    others: tuple[ContainerSummary, ...] = (),
    codes: dict[str, int] | None = None,
    **changes: Any,
) -> NoFault | Reason | None:
    container = ended if ended is not None else view("c")
    known = {ContainerId(identity): each for identity, each in (codes or {}).items()}
    found = Exit(
        pod=pod,
        container=container,
        exit_code=code,
        containers=(container, *others),
        exit_codes={container.id: code, **known},
        **changes,
    )
    return exits.no_fault_reason(found, opted_in_namespaces=frozenset({"open"}))


@pytest.mark.parametrize("code", [1, 42, 137, 139, 143, 255])
def test_nonzero_exit_of_main_container_is_fault(code: int) -> None:
    assert no_fault(builders.member(), code=code) is None


def test_exit_with_0_is_completion() -> None:
    assert no_fault(builders.member(), code=0) is NoFault.COMPLETED


@pytest.mark.parametrize(
    ("role", "reason"),
    [(ContainerRole.INIT, Reason.INIT_CONTAINER), (ContainerRole.SIDECAR, Reason.NOT_SELECTED)],
)
def test_exit_of_init_or_sidecar_is_left_to_kubelet(role: ContainerRole, reason: Reason) -> None:
    pod = builders.member(containers=(ContainerSpec("trainer", role), ContainerSpec("main", ContainerRole.MAIN)))
    assert no_fault(pod) is reason


def test_exit_of_container_without_devices_is_left_to_kubelet() -> None:
    trainer = ContainerSpec("trainer", ContainerRole.MAIN, holds_devices=True)
    pod = builders.member(containers=(trainer, ContainerSpec("log-shipper", ContainerRole.MAIN)))
    assert no_fault(pod) is None
    assert no_fault(pod, ended=view("l", name="log-shipper")) is Reason.NOT_SELECTED


def test_exit_of_container_missing_from_pod_is_no_fault() -> None:
    assert no_fault(builders.member(containers=())) is Reason.CONTAINER_UNKNOWN


def test_exit_of_deleted_pod_is_no_fault() -> None:
    assert no_fault(builders.member(deleting=True)) is Reason.POD_DELETING
    assert no_fault(builders.member(leaving="Evicted"), code=137) is Reason.POD_DELETING


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [({}, Reason.NOT_OPTED_IN), ({"kubemend.io/restart": "Perhaps"}, Reason.BAD_ANNOTATION)],
)
def test_exit_without_opt_in_is_no_fault(annotations: dict[str, str], reason: Reason) -> None:
    assert no_fault(builders.member(annotations=annotations)) is reason


def test_exit_in_opted_in_namespace_is_fault() -> None:
    assert no_fault(builders.member(annotations={}, ref=replace(builders.ref(0), namespace="open"))) is None


def test_exit_of_container_not_in_annotation_is_no_fault() -> None:
    selected = {"kubemend.io/restart": "InPlace", "kubemend.io/containers": "launcher"}
    pod = builders.member(
        annotations=selected,
        containers=(ContainerSpec("trainer", ContainerRole.MAIN), ContainerSpec("launcher", ContainerRole.MAIN)),
    )
    assert no_fault(pod) is Reason.NOT_SELECTED
    assert no_fault(pod, ended=view("l", name="launcher")) is None


def test_exit_caused_by_restart_or_round_is_no_fault() -> None:
    assert no_fault(builders.member(), code=137, ours=True) is NoFault.OURS


def test_exit_reported_after_successor_runs_is_no_fault() -> None:
    successor = view("n", attempt=1, state=ContainerState.RUNNING, restart_id="r1")
    assert no_fault(builders.member(), others=(successor,)) is NoFault.OURS


def test_exit_that_kubelet_restarted_first_is_fault() -> None:
    successor = view("n", attempt=1, state=ContainerState.RUNNING)
    assert no_fault(builders.member(), others=(successor,)) is None


def test_exit_of_successor_is_fault() -> None:
    assert no_fault(builders.member(), ended=view("n", attempt=1, restart_id="r1"), others=(view("c"),)) is None


def test_only_triggering_exit_of_whole_pod_restart_is_fault() -> None:
    pod = builders.member(
        containers=(builders.restarts_all("trainer", on=7), ContainerSpec("logger", ContainerRole.MAIN))
    )
    first, second = view("c"), view("l", name="logger")
    assert no_fault(pod, code=7, ended=first) is None
    assert no_fault(pod, code=137, ended=second, others=(first,), codes={"c": 7}) is NoFault.KUBELETS
    assert no_fault(pod, code=137, ended=second, others=(first,), codes={"c": 8}) is None
    again = view("c2", attempt=1, state=ContainerState.RUNNING)
    assert no_fault(pod, code=137, ended=second, others=(first, again), codes={"c": 7}) is None
