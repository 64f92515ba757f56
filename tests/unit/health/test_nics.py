"""NICs as a whole: lost ones, several links on one, errors, and a fold that is independent of batching."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.health.nic import rdma_errors, rules
from kubemend.agent.health.nic.rdma_errors import CounterReading
from kubemend.agent.health.nic.rules import NicChange, NicReading
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.findings import FindingKind
from tests.unit.health.nic_readings import LIMITS, PCI, Emitted, netdev, nic, port

OTHER = PciAddress.parse("0008:41:00.1")


def errors(at: float, **values: int) -> dict[str, CounterReading]:
    return {"mlx5_0/1": CounterReading(at, values)}


@pytest.mark.parametrize(
    ("driver", "text"),
    [
        (None, "it was present on this boot, and is no longer on the PCI bus"),
        ("", "its driver mlx5_core was unbound from it"),
        ("vfio-pci", "it is bound to vfio-pci; it was bound to mlx5_core"),
    ],
)
def test_defect_9_vanished_nic_is_lost(driver: str | None, text: str) -> None:
    """nvidia-resiliency-ext considers a NIC healthy when its path in sysfs is gone."""
    emitted = Emitted().at(0.0, nic(netdev())).at(1.0, nic(driver=driver))
    assert emitted.held == {FindingKind.NIC_LOST: text}


def test_nic_lost_while_no_agent_ran_is_lost() -> None:
    before = Emitted().at(0.0, nic(netdev()))
    assert FindingKind.NIC_LOST in Emitted(memory=before.memory).at(0.0, nic(driver=None)).held


def test_returned_nic_is_healthy_once_it_has_stayed() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(1.0, nic(driver=None)).at(2.0, nic(netdev(serial=9)))
    assert FindingKind.NIC_LOST in emitted.at(2.0 + LIMITS.up_for - 0.1).held
    assert emitted.at(2.0 + LIMITS.up_for).held == {}


def test_unreadable_sysfs_changes_no_nic() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(1.0, nic(scanned=False)).at(100.0, nic(scanned=False))
    assert emitted.changes == []
    lost = Emitted().at(0.0, nic(netdev())).at(1.0, nic(driver=None)).at(2.0, nic(scanned=False)).at(100.0)
    assert FindingKind.NIC_LOST in lost.held


def test_links_are_judged_while_sysfs_is_unreadable() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(1.0, nic(netdev(up=False, drops=1), scanned=False))
    assert FindingKind.LINK_DOWN in emitted.held


def test_netdev_moved_into_a_pod_is_neither_down_nor_lost() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(1.0, nic(names=["eth1"])).at(100.0, nic(names=["eth1"]))
    assert emitted.held == {}


def test_fault_kind_is_emitted_once_for_all_links_of_nic() -> None:
    both = nic(netdev(), netdev(name="eth2", serial=8))
    emitted = Emitted().at(0.0, both).at(1.0, nic(netdev(up=False, drops=1), netdev(name="eth2", serial=8)))
    emitted.at(2.0, nic(netdev(up=False, drops=1), netdev(name="eth2", serial=8, up=False, drops=1)))
    assert emitted.held[FindingKind.LINK_DOWN] == (
        "eth1 has no carrier; it was up on this boot; eth2 has no carrier; it was up on this boot"
    )
    emitted.at(3.0, nic(netdev(drops=1), netdev(name="eth2", serial=8, up=False, drops=1))).at(100.0)
    assert emitted.held[FindingKind.LINK_DOWN] == "eth2 has no carrier; it was up on this boot"
    assert emitted.count(FindingKind.LINK_DOWN, over=True) == 0


def test_never_cabled_second_link_does_not_block_recovery() -> None:
    emitted = Emitted().at(0.0, nic(netdev(), netdev(name="eth2", up=False))).at(LIMITS.up_for)
    assert emitted.count(FindingKind.LINK_DOWN, over=True) == 1


def test_renamed_link_is_not_down_indefinitely() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(1.0, nic(netdev(up=False, drops=1)))
    emitted.at(2.0, nic(netdev(name="ens1", serial=9))).at(2.0 + LIMITS.up_for)
    assert emitted.held == {}
    assert emitted.memory.nics[PCI].links.keys() == {"ens1"}


def test_counters_read_before_an_outage_are_no_baseline_after_it() -> None:
    before = errors(0.0, local_link_integrity_errors=4)
    emitted = Emitted().at(0.0, nic(port(), counters=before)).at(5.0, nic(port("DOWN")))
    emitted.at(10.0, nic(port(), counters=before))
    emitted.at(30.0, nic(port(), counters=errors(30.0, local_link_integrity_errors=9)))
    assert FindingKind.RDMA_ERRORS not in emitted.held


def test_excess_errors_are_reported_and_end_after_ten_minutes() -> None:
    emitted = Emitted().at(0.0, nic(port(), counters=errors(0.0, local_link_integrity_errors=4)))
    emitted.at(30.0, nic(port(), counters=errors(30.0, local_link_integrity_errors=5)))
    assert emitted.held[FindingKind.RDMA_ERRORS] == (
        "mlx5_0/1: local_link_integrity_errors grew by more than 0 in 1 min"
    )
    emitted.at(100.0, nic(port(), counters=errors(100.0, local_link_integrity_errors=5)))
    assert FindingKind.RDMA_ERRORS in emitted.at(100.0 + rdma_errors.QUIET - 1).held
    assert emitted.at(100.0 + rdma_errors.QUIET).held == {}


def test_unread_counters_neither_raise_nor_end_errors() -> None:
    emitted = Emitted().at(0.0, nic(port())).at(10_000.0, nic(port()))
    assert emitted.count(FindingKind.RDMA_ERRORS, over=True) == 0


@pytest.mark.parametrize("kind", rules.KINDS)
def test_starting_agent_emits_over_for_every_healthy_kind(kind: FindingKind) -> None:
    emitted = Emitted()
    for second in range(0, 700, 10):
        healthy = nic(netdev(speed=100), port(speed=100), counters=errors(float(second), symbol_error=3))
        emitted.at(float(second), healthy)
    assert emitted.held == {}
    assert emitted.count(kind, over=True) == 1


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
def test_batching_repetition_and_extra_readings_change_nothing(
    steps: list[tuple[float, list[NicReading]]], between: list[float]
) -> None:
    whole, split = Emitted(), Emitted()
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


def test_flapping_of_a_nic_that_was_lost_ends_ten_minutes_after_the_last_drop() -> None:
    """It was reported when the NIC was back, so that the next reading is the first one after the ten minutes."""
    emitted = Emitted().at(0.0, nic(netdev())).at(0.0, nic(netdev(drops=LIMITS.flap_drops), driver=""))
    emitted.at(400.0, nic(netdev(drops=None)))
    assert FindingKind.LINK_FLAPPING in emitted.held
    assert FindingKind.LINK_FLAPPING not in emitted.at(LIMITS.flap_settle, nic(netdev(drops=None))).held


def by_nic_and_kind(changes: Sequence[NicChange]) -> dict[tuple[PciAddress, FindingKind], list[str | None]]:
    """NICs that change at the same time have no defined order."""
    emitted: dict[tuple[PciAddress, FindingKind], list[str | None]] = {}
    for change in changes:
        emitted.setdefault((change.pci, change.kind), []).append(change.text)
    return emitted


@given(STEPS)
def test_every_emitted_fault_ends_after_lasting_health(
    steps: list[tuple[float, list[NicReading]]],
) -> None:
    emitted = Emitted()
    for now, readings in timed(steps):
        emitted.at(now, *readings)
    well = [nic(netdev(drops=9, speed=400), port(speed=400), pci=pci) for pci in (PCI, OTHER)]
    since = emitted.now + 1
    emitted.at(since, *well).at(since + 1, *well).at(since + 10_000.0, *well)
    assert emitted.held == emitted.held_of(OTHER) == {}
    assert rules.due(emitted.state) is None


@given(STEPS)
def test_same_text_is_never_emitted_twice(steps: list[tuple[float, list[NicReading]]]) -> None:
    emitted = Emitted()
    for now, readings in timed(steps):
        emitted.at(now, *readings)
    for texts in by_nic_and_kind(emitted.changes).values():
        assert all(before != after for before, after in itertools.pairwise(texts))


@given(st.lists(st.tuples(st.floats(0.0, 500.0), st.builds(nic, scanned=st.just(False))), max_size=10))
def test_unknown_emits_nothing(steps: list[tuple[float, NicReading]]) -> None:
    emitted = Emitted(memory=Emitted().at(0.0, nic(netdev(speed=400))).memory)
    for now, readings in timed([(wait, [reading]) for wait, reading in steps]):
        emitted.at(now, *readings)
    assert emitted.changes == []


def test_timed_change_is_due_when_it_happens() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(5.0, nic(netdev(up=False, drops=1))).at(6.0, nic(netdev(drops=1)))
    while (due := rules.due(emitted.state)) is not None:
        before = len(emitted.changes)
        emitted.at(due)
        assert len(emitted.changes) > before
    assert emitted.held == {}
