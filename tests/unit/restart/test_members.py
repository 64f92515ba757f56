"""The containers of a pod that a gang's round concerns."""

from dataclasses import replace

import pytest

from kubemend.agent.model.workloads import (
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ContainerSummary,
    PodView,
    RestartPolicy,
)
from kubemend.agent.restart import members
from tests.unit.restart import builders, pods

SPECS = (
    ContainerSpec("prepare", ContainerRole.INIT),
    ContainerSpec("shipper", ContainerRole.SIDECAR),
    ContainerSpec("trainer", ContainerRole.MAIN),
    ContainerSpec("logger", ContainerRole.MAIN),
)
RUNNING = {name: pods.old(name) for name in ("prepare", "shipper", "trainer", "logger")}


def pod(policy: RestartPolicy = RestartPolicy.ON_FAILURE) -> PodView:
    return builders.pod(containers=SPECS, restart_policy=policy)


def select(
    view: PodView,
    *,
    named: frozenset[str] = frozenset(),
    exited: dict[str, int] | None = None,
    missing: tuple[str, ...] = (),
) -> members.Selection:
    codes = exited or {}
    seen: dict[str, ContainerSummary] = {name: each for name, each in RUNNING.items() if name not in missing}
    seen |= {name: pods.old(name, ContainerState.EXITED) for name in codes}
    return members.select(view, named=named, seen=seen, exit_codes=codes)


def test_all_main_containers_are_selected() -> None:
    selection = select(pod())
    assert selection.restarted == ("trainer", "logger")
    assert selection.held == {"trainer", "logger"}


def test_only_containers_with_devices_are_selected_if_any() -> None:
    specs = [replace(spec, holds_devices=spec.name == "trainer") for spec in SPECS]
    assert select(builders.pod(containers=tuple(specs))).restarted == ("trainer",)


def test_of_ended_containers_one_that_never_runs_again_comes_first() -> None:
    """The decision examines the first one most closely."""
    never = [replace(spec, restart_policy=RestartPolicy.NEVER if spec.name == "logger" else None) for spec in SPECS]
    selection = select(builders.pod(containers=tuple(never)), exited={"trainer": 1, "logger": 1})
    assert selection.restarted == ("logger", "trainer")


def test_named_containers_override_targets_even_sidecars() -> None:
    assert set(select(pod(), named=frozenset({"trainer", "shipper"})).restarted) == {"trainer", "shipper"}


@pytest.mark.parametrize("policy", [RestartPolicy.ON_FAILURE, RestartPolicy.NEVER])
def test_container_ended_with_0_for_good_is_completed(policy: RestartPolicy) -> None:
    selection = select(pod(policy), exited={"logger": 0})
    assert selection.restarted == ("trainer",)
    assert selection.completed == {"logger"}
    assert select(pod(policy), exited={"logger": 0, "trainer": 0}).held == frozenset()


def test_exit_0_under_always_is_not_completion() -> None:
    selection = select(pod(RestartPolicy.ALWAYS), exited={"trainer": 0, "logger": 0})
    assert set(selection.restarted) == {"trainer", "logger"}
    assert not selection.completed


def test_failed_container_comes_first_because_its_end_may_be_final() -> None:
    assert select(pod(RestartPolicy.NEVER), exited={"logger": 1}).restarted == ("logger", "trainer")


def test_unstarted_container_is_held_only() -> None:
    selection = select(pod(), missing=("logger",))
    assert selection.restarted == ("trainer",)
    assert selection.held == {"trainer", "logger"}


def test_unknown_name_is_kept_for_admission_to_refuse() -> None:
    assert select(pod(), named=frozenset({"missing"})).restarted == ("missing",)


def test_newest_container_of_each_name_counts() -> None:
    seen = [pods.new("trainer", ContainerState.RUNNING), pods.old("trainer", ContainerState.EXITED)]
    newer = max(seen, key=lambda view: (view.created_at, view.attempt))
    assert members.newest(seen)["trainer"] == newer
