"""How often a container may be restarted, and what its pod's annotations may say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.workloads import ContainerId, ContainerRef, PodRef, PodUid
from agent.restart import host_files, intents, options
from agent.restart.budget import Budget


def test_the_first_three_restarts_are_immediate() -> None:
    assert Budget().reopens_at([0.0, 1.0], now=2.0) is None


def test_the_fourth_young_death_in_a_row_waits() -> None:
    assert Budget().reopens_at([0.0, 1.0, 2.0], now=3.0) == 12.0


def test_waits_double_up_to_a_limit() -> None:
    budget = Budget(limit=1000)
    waits = [budget.reopens_at([0.0] * (3 + n), now=1.0) for n in range(8)]
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0]


def test_a_successor_that_lived_starts_the_backoff_over() -> None:
    assert Budget().reopens_at([0.0, 1.0, 2.0], now=62.0) is None


def test_a_full_window_opens_when_its_oldest_restart_leaves_it() -> None:
    past = [float(100 * i) for i in range(10)]
    assert Budget().reopens_at(past, now=1000.0) == 3600.0


def test_a_budget_of_none_never_opens() -> None:
    assert Budget(limit=0).reopens_at([], now=1.0) == float("inf")


@given(st.lists(st.floats(0, 10_000), max_size=20), st.floats(0, 20_000))
def test_never_more_than_the_limit_in_any_window(times: list[float], now: float) -> None:
    past = sorted(time for time in times if time <= now)
    budget = Budget(limit=5, window=1000)
    if budget.reopens_at(past, now=now) is None:
        assert sum(time > now - 1000 for time in past) < 5


def test_annotations_are_read() -> None:
    wishes = options.parse(
        {
            "kubemend.io/restart": "InPlace",
            "kubemend.io/strategy": "swap",
            "kubemend.io/containers": "trainer, sidecar",
            "kubemend.io/grace-period": "1.5s",
            "kubemend.io/max-restarts": "3",
        }
    )
    assert wishes == options.Options(
        opted_in=True,
        strategy=intents.Strategy.SWAP,
        containers=frozenset({"trainer", "sidecar"}),
        grace_seconds=1.5,
        max_restarts=3,
    )


@pytest.mark.parametrize(("text", "seconds"), [("10", 10.0), ("500ms", 0.5), ("2m", 120.0), ("0", 0.0)])
def test_durations(text: str, seconds: float) -> None:
    assert options.parse({"kubemend.io/grace-period": text}).grace_seconds == seconds


@pytest.mark.parametrize(
    "annotation",
    [
        {"kubemend.io/restart": "inplace"},
        {"kubemend.io/strategy": "fast"},
        {"kubemend.io/grace-period": "soon"},
        {"kubemend.io/max-restarts": "-1"},
    ],
)
def test_an_annotation_that_cannot_be_understood_is_named(annotation: dict[str, str]) -> None:
    with pytest.raises(options.BadAnnotationError, match=next(iter(annotation))):
        options.parse(annotation)


def test_log_symlinks_are_named_as_kubelet_names_them() -> None:
    ref = ContainerRef(pod=PodRef("ns", "pod", PodUid("u")), name="main")
    assert host_files.log_symlink_name(ref, ContainerId("abc")) == "pod_ns_main-abc.log"


def test_a_log_symlink_name_fits_the_file_system() -> None:
    ref = ContainerRef(pod=PodRef("n" * 63, "p" * 253, PodUid("u")), name="c" * 63)
    name = host_files.log_symlink_name(ref, ContainerId("f" * 64))
    assert len(name) == 255
    assert name.endswith(".log")
