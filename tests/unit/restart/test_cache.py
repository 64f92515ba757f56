"""A compile cache is emptied only if its container failed early twice in a row, and only the pod's own emptyDir."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.model.workloads import ContainerRef, PodRef, PodUid
from kubemend.agent.restart import cache, options
from kubemend.agent.restart.cache import Crashes, Decision, NotOurs, Place, Reason, Volume
from kubemend.agent.restart.counts import Begun

UID = PodUid("0c1f6f9e-3d0e-4c3d-9d4e-1f6b0c1f6f9e")
TRAINER = ContainerRef(PodRef("default", "trainer-0", UID), "trainer")
PATH = f"{UID}/volumes/kubernetes.io~empty-dir/kubemend-cache"
PLACE = Place(Volume("/var/lib/kubelet/pods", PATH), "trainer")
HEALTHY_AFTER = 60.0  # Budget.healthy_after


@pytest.mark.parametrize("root", ["/var/lib/kubelet", "/data/pods", ""], ids=["usual", "elsewhere", "top"])
def test_pods_own_volume_is_identified_by_its_path(root: str) -> None:
    found = cache.place(f"{root}/pods/{PATH}", container=TRAINER)
    assert found == Place(Volume(f"{root}/pods", PATH), "trainer")


@pytest.mark.parametrize(
    "source",
    [
        f"/var/lib/kubelet/pods/{PATH}/trainer",
        f"/var/lib/kubelet/pods/{PATH}/",
        f"/var/lib/kubelet/pods/../pods/{PATH}",
        f"/var/lib/kubelet//pods/{PATH}",
        f"var/lib/kubelet/pods/{PATH}",
        f"/var/lib/kubelet/mypods/{PATH}",
        "/var/lib/kubelet/pods/another-uid/volumes/kubernetes.io~empty-dir/kubemend-cache",
        f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/data",
        f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~nfs/kubemend-cache",
        f"/var/lib/kubelet/pods/{UID}/volume-subpaths/kubemend-cache/trainer/0",
        "/mnt/caches",
        "/",
    ],
)
def test_other_directory_is_never_emptied(source: str) -> None:
    found = cache.place(source, container=TRAINER)
    assert found == NotOurs(f"{source} is not the pod's emptyDir kubemend-cache")


def test_container_without_the_mount_has_no_cache() -> None:
    assert cache.place(None, container=TRAINER) == NotOurs("nothing is mounted at /var/cache/kubemend")


def begun(at: float, *, fault_at: float, containers: frozenset[str] = frozenset({"trainer"})) -> Begun:
    return Begun(pod=UID, containers=containers, at=at, fault_at=fault_at)


def decide(
    past: list[Begun],
    *,
    died_at: float,
    found: Place | NotOurs = PLACE,
    died: str | None = "trainer",
    requested: bool = False,
    **annotations: str,
) -> Decision:
    pod_options = options.parse({f"kubemend.io/{name.replace('_', '-')}": text for name, text in annotations.items()})
    crashes = Crashes(past, died_at=died_at, died=died, requested=requested)
    return cache.decide(crashes, container="trainer", found=found, pod_options=pod_options)


TWICE = [begun(1000.0, fault_at=999.0), begun(1010.0, fault_at=1009.0)]


def test_first_death_keeps_the_cache() -> None:
    assert decide([], died_at=1000.0) == Decision(Reason.FEW_EARLY_FAILURES, 0)


def test_one_young_death_keeps_the_cache() -> None:
    assert decide(TWICE[:1], died_at=1009.0) == Decision(Reason.FEW_EARLY_FAILURES, 1)


def test_second_young_death_in_a_row_empties_the_cache() -> None:
    decision = decide(TWICE, died_at=1019.0)
    assert decision == Decision(Reason.EARLY_FAILURES, 2)
    assert decision.empties


def test_single_death_after_a_long_life_keeps_the_cache() -> None:
    assert decide(TWICE, died_at=1010.0 + HEALTHY_AFTER) == Decision(Reason.FEW_EARLY_FAILURES, 0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"found": NotOurs("it is a claim")}, Reason.NO_CACHE),
        ({"keep_cache": "true"}, Reason.OPTED_OUT),
        ({"cache": "Off"}, Reason.OPTED_OUT),
        ({"requested": True}, Reason.REQUESTED),
        ({"died": "shipper"}, Reason.NOT_THE_CAUSE),
    ],
)
def test_cache_is_kept_with_a_reason(changes: dict[str, object], reason: Reason) -> None:
    decision = decide(TWICE, died_at=1019.0, **changes)  # type: ignore[arg-type]
    assert decision.reason is reason
    assert not decision.empties


def test_gang_round_empties_the_cache_of_any_container_that_it_restarts() -> None:
    assert decide(TWICE, died_at=1019.0, died=None).empties


@pytest.mark.parametrize("text", ["yes", "True", "1", ""])
def test_keep_cache_refuses_other_values(text: str) -> None:
    with pytest.raises(options.BadAnnotationError, match=options.KEEP_CACHE):
        options.parse({options.KEEP_CACHE: text})


_LIFE = st.floats(min_value=0.01, max_value=3 * HEALTHY_AFTER)
_LIVES = st.lists(st.tuples(_LIFE, st.sampled_from([frozenset({"trainer"}), frozenset({"shipper"})])), max_size=8)


@given(
    lives=_LIVES,
    found=st.sampled_from([PLACE, NotOurs("it is a claim")]),
    died=st.sampled_from(["trainer", "shipper", None]),
    requested=st.booleans(),
    keep=st.booleans(),
)
def test_cache_is_emptied_only_after_two_short_lives(
    lives: list[tuple[float, frozenset[str]]],
    found: Place | NotOurs,
    died: str | None,
    requested: bool,
    keep: bool,
) -> None:
    """Play the lives one after the other; each ends with a death of its container, which is restarted."""
    now, born = 0.0, 0.0
    past: list[Begun] = []
    short: list[bool] = []
    for life, containers in lives:
        now += life
        if "trainer" in containers:
            short.append(now - born < HEALTHY_AFTER if past_of_trainer(past) else False)
            born = now
        past.append(begun(now, fault_at=now, containers=containers))
    died_at = now + 1.0
    short.append(died_at - born < HEALTHY_AFTER if past_of_trainer(past) else False)
    decision = decide(past, died_at=died_at, found=found, died=died, requested=requested, keep_cache=str(keep).lower())
    may = found is PLACE and died in ("trainer", None) and not requested and not keep
    assert decision.empties == (may and short[-2:] == [True, True])


def past_of_trainer(past: list[Begun]) -> bool:
    """Return whether the trainer was restarted before: its first life does not count for the backoff."""
    return any("trainer" in each.containers for each in past)
