"""NICs as a whole: lost ones, several links on one, errors, and a fold that no batching changes."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.health import nics, rdma_errors
from agent.health.nics import NicChange, NicReading
from agent.health.rdma_errors import CounterReading
from agent.model.devices import PciAddress
from agent.model.findings import FindingKind
from tests.unit.health.nic_readings import LIMITS, PCI, Told, netdev, nic, port

OTHER = PciAddress.parse("0008:41:00.1")


def errors(at: float, **values: int) -> dict[str, CounterReading]:
    return {"mlx5_0/1": CounterReading(at, values)}


@pytest.mark.parametrize(
    ("driver", "text"),
    [
        (None, "it was there on this boot, and is not on the PCI bus any more"),
        ("", "its driver mlx5_core was unbound from it"),
        ("vfio-pci", "it is bound to vfio-pci and was to mlx5_core"),
    ],
)
def test_defect_9_a_nic_that_vanishes_is_lost(driver: str | None, text: str) -> None:
    """nvidia-resiliency-ext takes a NIC whose path in sysfs is gone for healthy."""
    told = Told().at(0.0, nic(netdev())).at(1.0, nic(driver=driver))
    assert told.held == {FindingKind.NIC_LOST: text}


def test_a_nic_that_was_lost_while_no_agent_ran_is_lost() -> None:
    before = Told().at(0.0, nic(netdev()))
    assert FindingKind.NIC_LOST in Told(memory=before.memory).at(0.0, nic(driver=None)).held


def test_a_nic_that_is_back_is_well_once_it_has_stayed() -> None:
    told = Told().at(0.0, nic(netdev())).at(1.0, nic(driver=None)).at(2.0, nic(netdev(serial=9)))
    assert FindingKind.NIC_LOST in told.at(2.0 + LIMITS.up_for - 0.1).held
    assert told.at(2.0 + LIMITS.up_for).held == {}


def test_where_sysfs_cannot_be_read_no_nic_is_lost_and_none_is_well() -> None:
    told = Told().at(0.0, nic(netdev())).at(1.0, nic(scanned=False)).at(100.0, nic(scanned=False))
    assert told.changes == []
    lost = Told().at(0.0, nic(netdev())).at(1.0, nic(driver=None)).at(2.0, nic(scanned=False)).at(100.0)
    assert FindingKind.NIC_LOST in lost.held


def test_links_are_judged_also_while_sysfs_cannot_be_read() -> None:
    told = Told().at(0.0, nic(netdev())).at(1.0, nic(netdev(up=False, drops=1), scanned=False))
    assert FindingKind.LINK_DOWN in told.held


def test_a_netdev_that_was_moved_into_a_pod_is_neither_down_nor_lost() -> None:
    told = Told().at(0.0, nic(netdev())).at(1.0, nic(names=["eth1"])).at(100.0, nic(names=["eth1"]))
    assert told.held == {}


def test_a_kind_of_fault_is_told_once_for_all_links_of_a_nic() -> None:
    both = nic(netdev(), netdev(name="eth2", serial=8))
    told = Told().at(0.0, both).at(1.0, nic(netdev(up=False, drops=1), netdev(name="eth2", serial=8)))
    told.at(2.0, nic(netdev(up=False, drops=1), netdev(name="eth2", serial=8, up=False, drops=1)))
    assert told.held[FindingKind.LINK_DOWN] == (
        "eth1 has no carrier; it was up on this boot; eth2 has no carrier; it was up on this boot"
    )
    told.at(3.0, nic(netdev(drops=1), netdev(name="eth2", serial=8, up=False, drops=1))).at(100.0)
    assert told.held[FindingKind.LINK_DOWN] == "eth2 has no carrier; it was up on this boot"
    assert told.count(FindingKind.LINK_DOWN, over=True) == 0


def test_a_second_link_that_was_never_cabled_does_not_keep_a_nic_from_being_well() -> None:
    told = Told().at(0.0, nic(netdev(), netdev(name="eth2", up=False))).at(LIMITS.up_for)
    assert told.count(FindingKind.LINK_DOWN, over=True) == 1


def test_a_link_that_has_another_name_now_is_not_down_for_ever() -> None:
    told = Told().at(0.0, nic(netdev())).at(1.0, nic(netdev(up=False, drops=1)))
    told.at(2.0, nic(netdev(name="ens1", serial=9))).at(2.0 + LIMITS.up_for)
    assert told.held == {}
    assert told.memory.nics[PCI].links.keys() == {"ens1"}


def test_errors_beyond_a_limit_are_told_and_end_after_ten_minutes_within_limits() -> None:
    told = Told().at(0.0, nic(port(), counters=errors(0.0, local_link_integrity_errors=4)))
    told.at(30.0, nic(port(), counters=errors(30.0, local_link_integrity_errors=5)))
    assert told.held[FindingKind.RDMA_ERRORS] == ("mlx5_0/1: local_link_integrity_errors grew by more than 0 in 1 min")
    told.at(100.0, nic(port(), counters=errors(100.0, local_link_integrity_errors=5)))
    assert FindingKind.RDMA_ERRORS in told.at(100.0 + rdma_errors.QUIET - 1).held
    assert told.at(100.0 + rdma_errors.QUIET).held == {}


def test_errors_that_could_not_be_read_are_neither_there_nor_over() -> None:
    told = Told().at(0.0, nic(port())).at(10_000.0, nic(port()))
    assert told.count(FindingKind.RDMA_ERRORS, over=True) == 0


@pytest.mark.parametrize("kind", nics.KINDS)
def test_every_kind_is_told_to_be_over_at_the_start_of_an_agent_that_finds_it_well(kind: FindingKind) -> None:
    told = Told()
    for second in range(0, 700, 10):
        healthy = nic(netdev(speed=100), port(speed=100), counters=errors(float(second), symbol_error=3))
        told.at(float(second), healthy)
    assert told.held == {}
    assert told.count(kind, over=True) == 1


LINKS = st.builds(
    netdev,
    up=st.booleans(),
    admin_up=st.sampled_from([True, True, True, False]),
    drops=st.sampled_from([None, 0, 1, 2, 3, 5, 9]),
    speed=st.sampled_from([None, 100, 200, 400]),
    serial=st.sampled_from([7, 7, 8]),
)
PORTS = st.builds(port, st.sampled_from(["ACTIVE", "DOWN", "INIT"]), roce=st.booleans())
NICS = st.builds(
    nic,
    LINKS,
    PORTS,
    pci=st.sampled_from([PCI, OTHER]),
    scanned=st.sampled_from([True, True, True, False]),
    driver=st.sampled_from(["mlx5_core", "mlx5_core", "mlx5_core", "", None]),
)
STEPS = st.lists(st.tuples(st.floats(0.0, 200.0), st.lists(NICS, max_size=3)), max_size=15)


def timed(steps: Sequence[tuple[float, list[NicReading]]]) -> list[tuple[float, list[NicReading]]]:
    now, looks = 0.0, []
    for wait, readings in steps:
        now += wait
        looks.append((now, readings))
    return looks


@given(STEPS, st.lists(st.floats(0.0, 3_000.0), max_size=10))
def test_batches_repetitions_and_looks_in_between_change_nothing(
    steps: list[tuple[float, list[NicReading]]], between: list[float]
) -> None:
    whole, split = Told(), Told()
    for now, readings in timed(steps):
        batch = list({reading.pci: reading for reading in readings}.values())
        whole.at(now, *batch)
        for tick in sorted(tick for tick in between if split.now <= tick < now):
            split.at(tick)
        for reading in batch:
            split.at(now, reading).at(now, reading)
        split.at(now)
    assert by_nic_and_kind(whole.changes) == by_nic_and_kind(split.changes)
    assert whole.memory == split.memory


def by_nic_and_kind(changes: Sequence[NicChange]) -> dict[tuple[PciAddress, FindingKind], list[str | None]]:
    """NICs that change at one moment do so in no order."""
    told: dict[tuple[PciAddress, FindingKind], list[str | None]] = {}
    for change in changes:
        told.setdefault((change.pci, change.kind), []).append(change.text)
    return told


@given(STEPS)
def test_whatever_was_told_ends_when_all_is_well_for_long_enough(
    steps: list[tuple[float, list[NicReading]]],
) -> None:
    told = Told()
    for now, readings in timed(steps):
        told.at(now, *readings)
    well = [nic(netdev(drops=9, speed=400), port(speed=400), pci=pci) for pci in (PCI, OTHER)]
    since = told.now + 1
    told.at(since, *well).at(since + 1, *well).at(since + 10_000.0, *well)
    assert told.held == told.held_of(OTHER) == {}
    assert nics.due(told.state) is None


@given(STEPS)
def test_nothing_is_told_twice_in_the_same_words(steps: list[tuple[float, list[NicReading]]]) -> None:
    told = Told()
    for now, readings in timed(steps):
        told.at(now, *readings)
    for texts in by_nic_and_kind(told.changes).values():
        assert all(before != after for before, after in itertools.pairwise(texts))


@given(st.lists(st.tuples(st.floats(0.0, 500.0), st.builds(nic, scanned=st.just(False))), max_size=10))
def test_could_not_tell_tells_nothing(steps: list[tuple[float, NicReading]]) -> None:
    told = Told(memory=Told().at(0.0, nic(netdev(speed=400))).memory)
    for now, readings in timed([(wait, [reading]) for wait, reading in steps]):
        told.at(now, *readings)
    assert told.changes == []


def test_what_happens_by_itself_is_due_when_it_happens() -> None:
    told = Told().at(0.0, nic(netdev())).at(5.0, nic(netdev(up=False, drops=1))).at(6.0, nic(netdev(drops=1)))
    while (due := nics.due(told.state)) is not None:
        before = len(told.changes)
        told.at(due)
        assert len(told.changes) > before
    assert told.held == {}
