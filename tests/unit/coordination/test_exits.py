"""Which ends of containers are a member's fault."""

from dataclasses import replace
from typing import Any

import pytest

from agent.coordination import exits
from agent.coordination.exits import Exit, NoFault
from agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ContainerView,
    PodView,
    SandboxId,
)
from agent.restart.admission import Reason
from tests.unit.coordination import builders


def view(
    identity: str,
    *,
    name: str = "trainer",
    attempt: int = 0,
    state: ContainerState = ContainerState.EXITED,
    restart_id: str | None = None,
) -> ContainerView:
    return ContainerView(
        id=ContainerId(identity),
        ref=ContainerRef(builders.ref(0), name),
        sandbox_id=SandboxId("s"),
        attempt=attempt,
        state=state,
        created_at=attempt,
        restart_id=restart_id,
    )


def why(
    pod: PodView,
    *,
    code: int = 1,
    ended: ContainerView | None = None,
    others: tuple[ContainerView, ...] = (),
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
    return exits.why_no_fault(found, opted_in_namespaces=frozenset({"open"}))


@pytest.mark.parametrize("code", [1, 42, 137, 139, 143, 255])
def test_a_main_container_that_ends_by_itself_is_a_fault(code: int) -> None:
    assert why(builders.member(), code=code) is None


def test_an_end_with_0_is_completion() -> None:
    assert why(builders.member(), code=0) is NoFault.COMPLETED


@pytest.mark.parametrize(
    ("role", "reason"),
    [(ContainerRole.INIT, Reason.INIT_CONTAINER), (ContainerRole.SIDECAR, Reason.NOT_SELECTED)],
)
def test_containers_beside_the_main_ones_are_kubelets_business(role: ContainerRole, reason: Reason) -> None:
    pod = builders.member(containers=(ContainerSpec("trainer", role), ContainerSpec("main", ContainerRole.MAIN)))
    assert why(pod) is reason


def test_a_crash_beside_the_container_that_holds_the_devices_is_kubelets_business() -> None:
    trainer = ContainerSpec("trainer", ContainerRole.MAIN, holds_devices=True)
    pod = builders.member(containers=(trainer, ContainerSpec("log-shipper", ContainerRole.MAIN)))
    assert why(pod) is None
    assert why(pod, ended=view("l", name="log-shipper")) is Reason.NOT_SELECTED


def test_a_container_that_the_pod_does_not_have_is_not_judged() -> None:
    assert why(builders.member(containers=())) is Reason.CONTAINER_UNKNOWN


def test_a_pod_that_is_being_deleted_has_no_faults_any_more() -> None:
    assert why(builders.member(deleting=True)) is Reason.POD_DELETING
    assert why(builders.member(leaving="Evicted"), code=137) is Reason.POD_DELETING


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [({}, Reason.NOT_OPTED_IN), ({"kubemend.io/restart": "Perhaps"}, Reason.BAD_ANNOTATION)],
)
def test_who_has_not_opted_in_is_left_alone(annotations: dict[str, str], reason: Reason) -> None:
    assert why(builders.member(annotations=annotations)) is reason


def test_a_namespace_can_opt_in_for_its_pods() -> None:
    assert why(builders.member(annotations={}, ref=replace(builders.ref(0), namespace="open"))) is None


def test_containers_that_the_annotation_leaves_out_are_no_fault() -> None:
    selected = {"kubemend.io/restart": "InPlace", "kubemend.io/containers": "launcher"}
    pod = builders.member(
        annotations=selected,
        containers=(ContainerSpec("trainer", ContainerRole.MAIN), ContainerSpec("launcher", ContainerRole.MAIN)),
    )
    assert why(pod) is Reason.NOT_SELECTED
    assert why(pod, ended=view("l", name="launcher")) is None


def test_what_a_restart_or_a_round_has_ended_is_no_fault() -> None:
    assert why(builders.member(), code=137, ours=True) is NoFault.OURS


def test_an_end_that_is_told_after_our_successor_runs_is_no_fault() -> None:
    successor = view("n", attempt=1, state=ContainerState.RUNNING, restart_id="r1")
    assert why(builders.member(), others=(successor,)) is NoFault.OURS


def test_an_end_that_kubelet_was_faster_with_is_a_fault_still() -> None:
    successor = view("n", attempt=1, state=ContainerState.RUNNING)
    assert why(builders.member(), others=(successor,)) is None


def test_the_end_of_a_successor_of_ours_is_a_fault() -> None:
    assert why(builders.member(), ended=view("n", attempt=1, restart_id="r1"), others=(view("c"),)) is None


def test_of_a_pod_that_kubelet_restarts_whole_only_the_exit_that_it_does_so_for_is_a_fault() -> None:
    pod = builders.member(
        containers=(builders.restarts_all("trainer", on=7), ContainerSpec("logger", ContainerRole.MAIN))
    )
    first, second = view("c"), view("l", name="logger")
    assert why(pod, code=7, ended=first) is None
    assert why(pod, code=137, ended=second, others=(first,), codes={"c": 7}) is NoFault.KUBELETS
    assert why(pod, code=137, ended=second, others=(first,), codes={"c": 8}) is None
    again = view("c2", attempt=1, state=ContainerState.RUNNING)
    assert why(pod, code=137, ended=second, others=(first, again), codes={"c": 7}) is None
