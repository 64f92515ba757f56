"""For how long what is held may stand still before its probes have it killed."""

import itertools
import math
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from agent.model.workloads import ContainerRole, ContainerSpec, Probe
from agent.restart import probes

PROBES = st.builds(
    Probe, initial_delay=st.integers(0, 600), period=st.integers(1, 120), failure_threshold=st.integers(1, 30)
)


def spec(*, liveness: Probe | None = None, startup: Probe | None = None) -> ContainerSpec:
    return ContainerSpec("trainer", ContainerRole.MAIN, liveness=liveness, startup=startup)


def killed_at(probe: Probe, *, phase: float) -> float:
    """Play kubelet's worker: it looks every period, whenever that began, and passes over what is before the delay."""
    looks = (phase * probe.period + number * probe.period for number in count())
    failures = (at for at in looks if at >= probe.initial_delay)
    return next(itertools.islice(failures, probe.failure_threshold - 1, None))


@given(liveness=PROBES, phase=st.floats(0.0, 1.0))
def test_it_is_begun_anew_before_kubelet_kills_it_or_left_to_a_probe_that_is_too_quick(
    liveness: Probe, phase: float
) -> None:
    longest = probes.longest_hold([spec(liveness=liveness)])
    assert longest <= killed_at(liveness, phase=phase) or longest == probes.SHORTEST


@given(liveness=PROBES, startup=PROBES)
def test_until_the_startup_probe_has_succeeded_no_other_is_asked(liveness: Probe, startup: Probe) -> None:
    assert probes.patience(spec(liveness=liveness, startup=startup)) == probes.patience(spec(liveness=startup))


def test_what_has_no_probes_may_be_held_for_ever_and_of_several_the_shortest_counts() -> None:
    assert probes.longest_hold([spec()]) == math.inf
    assert probes.longest_hold([]) == math.inf
    slow, quick = Probe(failure_threshold=10), Probe(initial_delay=30.0)
    assert probes.longest_hold([spec(liveness=slow), spec(liveness=quick), spec()]) == 0.8 * 50.0
