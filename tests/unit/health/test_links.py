"""A lost carrier is reported at once; a link never cabled or taken down is not a fault; every fault ends."""

import pytest

from kubemend.agent.health.nic import links
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.findings import FindingKind
from tests.unit.health.nic_readings import LIMITS, PCI, Emitted, netdev, nic, port

UP_FOR = LIMITS.up_for
OTHERS = [PciAddress.parse(f"0000:{bus:02x}:00.0") for bus in (0x40, 0x41, 0x42)]


def test_lost_carrier_of_an_up_link_is_reported_immediately() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(5.0, nic(netdev(up=False, drops=1)))
    assert emitted.held == {FindingKind.LINK_DOWN: "eth1 has no carrier; it was up on this boot"}


def test_link_that_was_never_cabled_is_not_a_fault() -> None:
    emitted = Emitted().at(0.0, nic(netdev(up=False))).at(1000.0, nic(netdev(up=False)))
    assert emitted.held == {}
    assert emitted.count(FindingKind.LINK_DOWN, over=True) == 0  # nor is it known to be healthy


def test_restarted_agent_knows_links_that_were_never_cabled() -> None:
    before = Emitted().at(0.0, nic(netdev(), netdev(name="eth2", up=False)))
    emitted = Emitted(memory=before.memory).at(0.0, nic(netdev(), netdev(name="eth2", up=False))).at(1000.0)
    assert emitted.held == {}


def test_restarted_agent_knows_links_that_were_up() -> None:
    before = Emitted().at(0.0, nic(netdev()))
    assert FindingKind.LINK_DOWN in Emitted(memory=before.memory).at(0.0, nic(netdev(up=False, drops=1))).held


def test_link_is_healthy_only_after_lasting_up() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(5.0, nic(netdev(up=False, drops=1)))
    emitted.at(6.0, nic(netdev(drops=1))).at(6.0 + UP_FOR - 0.1)
    assert FindingKind.LINK_DOWN in emitted.held
    emitted.at(6.0 + UP_FOR)
    assert emitted.held == {}
    assert emitted.count(FindingKind.LINK_DOWN) == 1


def test_flickering_link_is_reported_once_and_stays_down() -> None:
    emitted = Emitted().at(0.0, nic(netdev()))
    for second in range(1, 60):
        emitted.at(float(second), nic(netdev(up=second % 2 == 0, drops=(second + 1) // 2)))
    assert emitted.count(FindingKind.LINK_DOWN) == 1
    assert FindingKind.LINK_DOWN in emitted.held


def test_restarted_agent_emits_over_for_healthy_link() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(UP_FOR)
    assert emitted.count(FindingKind.LINK_DOWN, over=True) == 1


def test_link_taken_down_administratively_is_not_a_fault() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(1.0, nic(netdev(up=False, admin_up=False, drops=1))).at(1000.0)
    assert FindingKind.LINK_DOWN not in emitted.held


def test_taking_down_a_link_without_carrier_ends_the_fault() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(1.0, nic(netdev(up=False, drops=1)))
    emitted.at(2.0, nic(netdev(up=False, admin_up=False, drops=1))).at(2.0 + UP_FOR)
    assert emitted.held == {}


def test_enabled_link_gets_time_to_come_up() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(1.0, nic(netdev(up=False, admin_up=False, drops=1)))
    emitted.at(10.0, nic(netdev(up=False, drops=1))).at(10.0 + LIMITS.link_training_timeout - 0.1)
    assert emitted.held == {}
    assert FindingKind.LINK_DOWN in emitted.at(10.0 + LIMITS.link_training_timeout).held


def test_enabled_link_that_came_up_and_loses_its_carrier_gets_no_time() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(1.0, nic(netdev(up=False, admin_up=False)))
    emitted.at(2.0, nic(netdev(up=False))).at(3.0, nic(netdev())).at(4.0, nic(netdev(up=False)))
    assert FindingKind.LINK_DOWN in emitted.held


def test_link_gets_time_to_come_up_after_driver_reload() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(1.0, nic(netdev(up=False, serial=8)))
    assert emitted.at(20.0, nic(netdev(serial=8))).held == {}


def test_three_drops_are_flapping_and_ten_quiet_minutes_end_it() -> None:
    """By default gpud keeps flaps indefinitely (defect 10)."""
    emitted = Emitted().at(0.0, nic(netdev())).at(10.0, nic(netdev(drops=1))).at(20.0, nic(netdev(drops=2)))
    assert FindingKind.LINK_FLAPPING not in emitted.held
    emitted.at(30.0, nic(netdev(drops=3)))
    assert emitted.held[FindingKind.LINK_FLAPPING] == "eth1 was lost 3 times within 10 minutes"
    emitted.at(30.0 + LIMITS.flap_settle - 0.1, nic(netdev(drops=3)))
    assert FindingKind.LINK_FLAPPING in emitted.held
    assert FindingKind.LINK_FLAPPING not in emitted.at(30.0 + LIMITS.flap_settle).held


def test_another_drop_restarts_the_quiet_time() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(10.0, nic(netdev(drops=3))).at(500.0, nic(netdev(drops=4)))
    assert FindingKind.LINK_FLAPPING in emitted.at(500.0 + LIMITS.flap_settle - 1, nic(netdev(drops=4))).held
    assert FindingKind.LINK_FLAPPING not in emitted.at(500.0 + LIMITS.flap_settle).held
    assert emitted.count(FindingKind.LINK_FLAPPING) == 1


def test_drops_counted_by_kernel_without_message_count() -> None:
    """The kernel reports changes at most once a second, so fast flaps look like a link that stays up."""
    assert FindingKind.LINK_FLAPPING in Emitted().at(0.0, nic(netdev())).at(1.0, nic(netdev(drops=6))).held


def test_kernel_without_counter_is_judged_by_its_messages() -> None:
    emitted = Emitted().at(0.0, nic(netdev(drops=None)))
    for second in range(1, 7):
        emitted.at(float(second), nic(netdev(drops=None, up=second % 2 == 0)))
    assert FindingKind.LINK_FLAPPING in emitted.held


def test_three_drops_beyond_the_window_are_not_flapping() -> None:
    emitted = Emitted().at(0.0, nic(netdev()))
    for drops in range(1, 10):
        emitted.at(drops * 310.0, nic(netdev(drops=drops)))
    assert FindingKind.LINK_FLAPPING not in emitted.held


def test_window_longer_than_the_quiet_time_counts_all_drops_in_it() -> None:
    limits, track = links.LinkLimits(flap_window=3600.0), links.LinkTrack()
    flapping = []
    for drops in range(4):
        track = links.after_reading(track, netdev(drops=drops), now=drops * 900.0, limits=limits)
        flapping.append(track.flapping)
    assert flapping == [False, False, False, True]


def test_single_drop_after_flapping_has_ended_does_not_begin_it_again() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(10.0, nic(netdev(drops=3)))
    emitted.at(10.0 + LIMITS.flap_settle)
    emitted.at(1000.0, nic(netdev(drops=4))).at(1001.0, nic(netdev(drops=4)))
    assert emitted.count(FindingKind.LINK_FLAPPING) == 1
    assert FindingKind.LINK_FLAPPING not in emitted.held


def test_drops_are_counted_across_readings_without_their_count() -> None:
    """The count of an InfiniBand port is read more rarely than its state."""
    emitted = Emitted().at(0.0, nic(netdev()))
    for drops in (1, 2, 3):
        emitted.at(drops * 10.0, nic(netdev(up=False, drops=None))).at(drops * 10.0 + 5, nic(netdev(drops=drops)))
        assert (FindingKind.LINK_FLAPPING in emitted.held) is (drops == 3)


def test_taking_link_down_and_up_is_not_flapping() -> None:
    emitted = Emitted().at(0.0, nic(netdev()))
    for number in range(1, 9):
        emitted.at(number * 10.0, nic(netdev(up=False, admin_up=False, drops=number)))
        emitted.at(number * 10.0 + 5, nic(netdev(drops=number)))
    assert emitted.held == {}


def test_drops_of_previous_driver_instance_do_not_count() -> None:
    emitted = Emitted().at(0.0, nic(netdev())).at(1.0, nic(netdev(serial=8, drops=9)))
    assert emitted.at(2.0, nic(netdev(serial=8, drops=9))).held == {}
    late = Emitted().at(0.0, nic(netdev(drops=5))).at(1.0, nic(netdev(serial=8, drops=None)))
    assert late.at(2.0, nic(netdev(serial=8, drops=9))).held == {}


def test_link_that_returns_slower_is_slow() -> None:
    emitted = Emitted().at(0.0, nic(netdev(speed=400_000)))
    emitted.at(10.0, nic(netdev(speed=200_000))).at(10.0 + LIMITS.slow_for)
    assert emitted.held[FindingKind.LINK_SLOW] == "eth1 runs at 200000 Mb/s; it had 400000 on this boot"
    emitted.at(100.0, nic(netdev(speed=400_000))).at(100.0 + LIMITS.slow_for)
    assert emitted.held == {}


def test_restarted_agent_knows_best_speed_of_the_boot() -> None:
    before = Emitted().at(0.0, nic(netdev(speed=400_000)))
    emitted = Emitted(memory=before.memory).at(0.0, nic(netdev(speed=200_000))).at(LIMITS.slow_for)
    assert FindingKind.LINK_SLOW in emitted.held


def test_link_slower_than_peers_from_the_start_is_slow() -> None:
    fast = [nic(netdev(speed=400_000), pci=pci) for pci in OTHERS]
    emitted = Emitted().at(0.0, nic(netdev(speed=200_000)), *fast).at(LIMITS.slow_for)
    assert [
        (change.pci, change.text) for change in emitted.changes if change.kind is FindingKind.LINK_SLOW and change.text
    ] == [(PCI, "eth1 runs at 200000 Mb/s, its peers at 400000")]


def test_momentary_wrong_speed_is_not_reported() -> None:
    emitted = Emitted().at(0.0, nic(netdev(speed=400_000))).at(1.0, nic(netdev(speed=100_000)))
    assert emitted.held == {}
    assert emitted.at(2.0, nic(netdev(speed=400_000))).at(100.0).held == {}


def test_link_without_speed_is_not_judged() -> None:
    emitted = Emitted().at(0.0, nic(netdev(speed=400_000))).at(1.0, nic(netdev(speed=None))).at(100.0)
    assert emitted.held == {}


@pytest.mark.parametrize(
    ("speeds", "usual"),
    [
        ([], None),
        ([400], None),
        ([400, 200], None),
        ([400, 400], None),
        ([400, 400, 200], 400),
        ([400, 400, 200, 200], None),
        ([400, 200, 100], None),
        ([100, 400, 400, 400, 400], 400),
    ],
)
def test_usual_speed_needs_majority_of_three_or_more(speeds: list[int], usual: int | None) -> None:
    assert links.usual_speed(speeds) == usual


def test_active_port_that_becomes_inactive_is_down() -> None:
    emitted = Emitted().at(0.0, nic(port())).at(5.0, nic(port("INIT")))
    assert emitted.held == {FindingKind.RDMA_PORT_DOWN: "mlx5_0/1 is INIT; it was active on this boot"}
    emitted.at(6.0, nic(port("DOWN")))
    assert emitted.held == {FindingKind.RDMA_PORT_DOWN: "mlx5_0/1 is DOWN; it was active on this boot"}
    emitted.at(7.0, nic(port())).at(7.0 + UP_FOR)
    assert emitted.held == {}


def test_roce_port_waits_for_netlink_report_of_its_netdev() -> None:
    emitted = Emitted().at(0.0, nic(port(roce=True))).at(5.0, nic(port("DOWN", roce=True)))
    assert emitted.held == {}
    emitted.at(6.0, nic(port("DOWN", roce=True)))
    assert FindingKind.RDMA_PORT_DOWN in emitted.at(5.0 + LIMITS.roce_down_delay).held
    assert emitted.count(FindingKind.RDMA_PORT_DOWN) == 1


def test_port_that_was_never_active_is_not_a_fault() -> None:
    assert Emitted().at(0.0, nic(port("DOWN"))).at(100.0, nic(port("DOWN"))).held == {}


def test_infiniband_port_below_peers_is_slow_and_roce_port_is_not() -> None:
    fast = [nic(port(speed=400_000), pci=pci) for pci in OTHERS]
    assert FindingKind.LINK_SLOW in Emitted().at(0.0, nic(port(speed=200_000)), *fast).at(LIMITS.slow_for).held
    roce = Emitted().at(0.0, nic(port(roce=True, speed=400_000))).at(1.0, nic(port(roce=True, speed=100_000)))
    assert roce.at(100.0).held == {}
