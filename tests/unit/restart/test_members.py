"""Which containers of a pod a gang's round is about."""

from dataclasses import replace

import pytest

from agent.model.workloads import ContainerRole, ContainerSpec, ContainerState, ContainerView, PodView, RestartPolicy
from agent.restart import members
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
    seen: dict[str, ContainerView] = {name: each for name, each in RUNNING.items() if name not in missing}
    seen |= {name: pods.old(name, ContainerState.EXITED) for name in codes}
    return members.select(view, named=named, seen=seen, exit_codes=codes)


def test_all_main_containers_are_restarted_and_no_others() -> None:
    selection = select(pod())
    assert selection.restarted == ("trainer", "logger")
    assert selection.held == {"trainer", "logger"}


def test_where_some_hold_devices_those_are_restarted() -> None:
    specs = [replace(spec, holds_devices=spec.name == "trainer") for spec in SPECS]
    assert select(builders.pod(containers=tuple(specs))).restarted == ("trainer",)


def test_named_ones_go_before_that_a_sidecar_among_them() -> None:
    assert set(select(pod(), named=frozenset({"trainer", "shipper"})).restarted) == {"trainer", "shipper"}


@pytest.mark.parametrize("policy", [RestartPolicy.ON_FAILURE, RestartPolicy.NEVER])
def test_what_has_ended_with_0_for_good_has_completed(policy: RestartPolicy) -> None:
    selection = select(pod(policy), exited={"logger": 0})
    assert selection.restarted == ("trainer",)
    assert selection.completed == {"logger"}
    assert select(pod(policy), exited={"logger": 0, "trainer": 0}).held == frozenset()


def test_under_always_an_exit_with_0_is_no_completion() -> None:
    selection = select(pod(RestartPolicy.ALWAYS), exited={"trainer": 0, "logger": 0})
    assert set(selection.restarted) == {"trainer", "logger"}
    assert not selection.completed


def test_what_has_failed_comes_first_for_its_end_may_be_final() -> None:
    assert select(pod(RestartPolicy.NEVER), exited={"logger": 1}).restarted == ("logger", "trainer")


def test_what_has_not_begun_yet_is_held_only() -> None:
    selection = select(pod(), missing=("logger",))
    assert selection.restarted == ("trainer",)
    assert selection.held == {"trainer", "logger"}


def test_a_name_that_the_pod_does_not_have_is_kept_for_admission_to_refuse() -> None:
    assert select(pod(), named=frozenset({"nobody"})).restarted == ("nobody",)


def test_the_newest_of_each_name_counts() -> None:
    seen = [pods.new("trainer", ContainerState.RUNNING), pods.old("trainer", ContainerState.EXITED)]
    newer = max(seen, key=lambda view: (view.created_at, view.attempt))
    assert members.newest(seen)["trainer"] == newer
