"""When kubelet kills a container for its probes: one that is held, or one that has replaced another."""

import itertools
import math
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.model.workloads import ContainerRole, ContainerSpec, Probe
from kubemend.agent.restart import probes

PROBES = st.builds(
    Probe, initial_delay=st.integers(0, 600), period=st.integers(1, 120), failure_threshold=st.integers(1, 30)
)


def spec(*, liveness: Probe | None = None, startup: Probe | None = None) -> ContainerSpec:
    return ContainerSpec("trainer", ContainerRole.MAIN, liveness=liveness, startup=startup)


def killed_at(probe: Probe, *, phase: float) -> float:
    """Play kubelet's worker: it probes every period, with any phase, and skips the initial delay."""
    looks = (phase * probe.period + number * probe.period for number in count())
    failures = (at for at in looks if at >= probe.initial_delay)
    return next(itertools.islice(failures, probe.failure_threshold - 1, None))


@given(liveness=PROBES, phase=st.floats(0.0, 1.0))
def test_hold_is_renewed_before_the_kill_unless_too_often(liveness: Probe, phase: float) -> None:
    longest = probes.longest_hold([spec(liveness=liveness)])
    assert longest <= killed_at(liveness, phase=phase) or longest == probes.SHORTEST


@given(liveness=PROBES, startup=PROBES)
def test_startup_probe_replaces_liveness_probe_unless_that_may_act_first(liveness: Probe, startup: Probe) -> None:
    both = spec(liveness=liveness, startup=startup)
    longest = [probes.max_hold_seconds(spec(liveness=startup))]
    if probes.liveness_may_act_first(both):
        longest.append(probes.max_hold_seconds(spec(liveness=liveness)))
    assert probes.max_hold_seconds(both) == min(longest)


@given(liveness=PROBES, startup=PROBES, phase=st.floats(0.0, 1.0))
def test_liveness_acts_first_only_where_that_is_foreseen(liveness: Probe, startup: Probe, phase: float) -> None:
    takes_over = startup.period + probes.LATE
    foreseen = probes.liveness_may_act_first(spec(liveness=liveness, startup=startup))
    assert foreseen or killed_at(liveness, phase=phase) >= takes_over


def test_default_probes_are_no_obstacle_and_one_probe_alone_never_is() -> None:
    assert not probes.liveness_may_act_first(spec(liveness=Probe(), startup=Probe()))
    impatient = Probe(period=1.0, failure_threshold=1)
    assert probes.liveness_may_act_first(spec(liveness=impatient, startup=Probe()))
    assert not probes.liveness_may_act_first(spec(liveness=impatient))
    assert not probes.liveness_may_act_first(spec(startup=impatient))


def test_no_probe_allows_unlimited_hold_and_shortest_wins() -> None:
    assert probes.longest_hold([spec()]) == math.inf
    assert probes.longest_hold([]) == math.inf
    slow, quick = Probe(failure_threshold=10), Probe(initial_delay=30.0)
    assert probes.longest_hold([spec(liveness=slow), spec(liveness=quick), spec()]) == 0.8 * 50.0
