"""A lost carrier is told at once; what was never cabled, or was taken down, is no fault; all that is told ends."""

import pytest

from agent.health import links
from agent.model.devices import PciAddress
from agent.model.findings import FindingKind
from tests.unit.health.nic_readings import LIMITS, PCI, Told, netdev, nic, port

UP_FOR = LIMITS.up_for
OTHERS = [PciAddress.parse(f"0000:{bus:02x}:00.0") for bus in (0x40, 0x41, 0x42)]


def test_a_link_that_was_up_and_loses_its_carrier_is_told_at_once() -> None:
    told = Told().at(0.0, nic(netdev())).at(5.0, nic(netdev(up=False, drops=1)))
    assert told.held == {FindingKind.LINK_DOWN: "eth1 has no carrier; it was up on this boot"}


def test_a_link_that_was_never_cabled_is_no_fault() -> None:
    told = Told().at(0.0, nic(netdev(up=False))).at(1000.0, nic(netdev(up=False)))
    assert told.held == {}
    assert told.count(FindingKind.LINK_DOWN, over=True) == 0  # nor is it known to be well


def test_a_restarted_agent_knows_which_links_were_up_on_this_boot() -> None:
    before = Told().at(0.0, nic(netdev()))
    assert FindingKind.LINK_DOWN in Told(memory=before.memory).at(0.0, nic(netdev(up=False, drops=1))).held


def test_a_link_is_well_again_only_once_it_was_up_for_long_enough() -> None:
    told = Told().at(0.0, nic(netdev())).at(5.0, nic(netdev(up=False, drops=1)))
    told.at(6.0, nic(netdev(drops=1))).at(6.0 + UP_FOR - 0.1)
    assert FindingKind.LINK_DOWN in told.held
    told.at(6.0 + UP_FOR)
    assert told.held == {}
    assert told.count(FindingKind.LINK_DOWN) == 1


def test_a_link_that_comes_and_goes_is_told_once_and_stays_down() -> None:
    told = Told().at(0.0, nic(netdev()))
    for second in range(1, 60):
        told.at(float(second), nic(netdev(up=second % 2 == 0, drops=(second + 1) // 2)))
    assert told.count(FindingKind.LINK_DOWN) == 1
    assert FindingKind.LINK_DOWN in told.held


def test_a_restarted_agent_tells_that_a_link_is_well() -> None:
    told = Told().at(0.0, nic(netdev())).at(UP_FOR)
    assert told.count(FindingKind.LINK_DOWN, over=True) == 1


def test_a_link_that_somebody_took_down_is_no_fault() -> None:
    told = Told().at(0.0, nic(netdev())).at(1.0, nic(netdev(up=False, admin_up=False, drops=1))).at(1000.0)
    assert FindingKind.LINK_DOWN not in told.held


def test_taking_a_link_down_that_had_lost_its_carrier_ends_the_fault() -> None:
    told = Told().at(0.0, nic(netdev())).at(1.0, nic(netdev(up=False, drops=1)))
    told.at(2.0, nic(netdev(up=False, admin_up=False, drops=1))).at(2.0 + UP_FOR)
    assert told.held == {}


def test_a_link_gets_time_to_come_up_after_it_was_enabled() -> None:
    told = Told().at(0.0, nic(netdev())).at(1.0, nic(netdev(up=False, admin_up=False, drops=1)))
    told.at(10.0, nic(netdev(up=False, drops=1))).at(10.0 + LIMITS.coming_up - 0.1)
    assert told.held == {}
    assert FindingKind.LINK_DOWN in told.at(10.0 + LIMITS.coming_up).held


def test_a_link_gets_time_to_come_up_after_its_driver_was_loaded_again() -> None:
    told = Told().at(0.0, nic(netdev())).at(1.0, nic(netdev(up=False, serial=8)))
    assert told.at(20.0, nic(netdev(serial=8))).held == {}


def test_three_drops_are_flapping_and_ten_quiet_minutes_end_it() -> None:
    """gpud's flaps stay for ever by default (defect 10)."""
    told = Told().at(0.0, nic(netdev())).at(10.0, nic(netdev(drops=1))).at(20.0, nic(netdev(drops=2)))
    assert FindingKind.LINK_FLAPPING not in told.held
    told.at(30.0, nic(netdev(drops=3)))
    assert told.held[FindingKind.LINK_FLAPPING] == "eth1 was lost 3 times within 10 minutes"
    told.at(30.0 + LIMITS.quiet - 0.1, nic(netdev(drops=3)))
    assert FindingKind.LINK_FLAPPING in told.held
    assert FindingKind.LINK_FLAPPING not in told.at(30.0 + LIMITS.quiet).held


def test_another_drop_makes_the_quiet_time_begin_anew() -> None:
    told = Told().at(0.0, nic(netdev())).at(10.0, nic(netdev(drops=3))).at(500.0, nic(netdev(drops=4)))
    assert FindingKind.LINK_FLAPPING in told.at(500.0 + LIMITS.quiet - 1, nic(netdev(drops=4))).held
    assert FindingKind.LINK_FLAPPING not in told.at(500.0 + LIMITS.quiet).held
    assert told.count(FindingKind.LINK_FLAPPING) == 1


def test_drops_that_the_kernel_counted_without_telling_are_drops() -> None:
    """It tells of changes at most once a second, so that fast flaps look like a link that stays up."""
    assert FindingKind.LINK_FLAPPING in Told().at(0.0, nic(netdev())).at(1.0, nic(netdev(drops=6))).held


def test_a_kernel_that_does_not_count_is_believed_by_what_it_tells() -> None:
    told = Told().at(0.0, nic(netdev(drops=None)))
    for second in range(1, 7):
        told.at(float(second), nic(netdev(drops=None, up=second % 2 == 0)))
    assert FindingKind.LINK_FLAPPING in told.held


def test_three_drops_in_more_than_the_window_are_no_flapping() -> None:
    told = Told().at(0.0, nic(netdev()))
    for drops in range(1, 10):
        told.at(drops * 310.0, nic(netdev(drops=drops)))
    assert FindingKind.LINK_FLAPPING not in told.held


def test_taking_a_link_down_and_up_again_is_no_flapping() -> None:
    told = Told().at(0.0, nic(netdev()))
    for number in range(1, 9):
        told.at(number * 10.0, nic(netdev(up=False, admin_up=False, drops=number)))
        told.at(number * 10.0 + 5, nic(netdev(drops=number)))
    assert told.held == {}


def test_drops_of_an_earlier_driver_instance_do_not_count() -> None:
    told = Told().at(0.0, nic(netdev())).at(1.0, nic(netdev(serial=8, drops=9)))
    assert told.at(2.0, nic(netdev(serial=8, drops=9))).held == {}


def test_a_link_that_comes_back_slower_than_it_was_is_slow() -> None:
    told = Told().at(0.0, nic(netdev(speed=400_000)))
    told.at(10.0, nic(netdev(speed=200_000))).at(10.0 + LIMITS.slow_for)
    assert told.held[FindingKind.LINK_SLOW] == "eth1 runs at 200000 Mb/s; it had 400000 on this boot"
    told.at(100.0, nic(netdev(speed=400_000))).at(100.0 + LIMITS.slow_for)
    assert told.held == {}


def test_a_restarted_agent_knows_the_best_speed_of_this_boot() -> None:
    before = Told().at(0.0, nic(netdev(speed=400_000)))
    told = Told(memory=before.memory).at(0.0, nic(netdev(speed=200_000))).at(LIMITS.slow_for)
    assert FindingKind.LINK_SLOW in told.held


def test_a_link_that_is_slower_than_its_peers_from_the_start_is_slow() -> None:
    fast = [nic(netdev(speed=400_000), pci=pci) for pci in OTHERS]
    told = Told().at(0.0, nic(netdev(speed=200_000)), *fast).at(LIMITS.slow_for)
    assert [
        (change.pci, change.text) for change in told.changes if change.kind is FindingKind.LINK_SLOW and change.text
    ] == [(PCI, "eth1 runs at 200000 Mb/s, its peers at 400000")]


def test_a_speed_that_is_wrong_for_a_moment_is_not_told() -> None:
    told = Told().at(0.0, nic(netdev(speed=400_000))).at(1.0, nic(netdev(speed=100_000)))
    assert told.at(2.0, nic(netdev(speed=400_000))).at(100.0).held == {}


def test_a_link_without_a_speed_says_nothing() -> None:
    told = Told().at(0.0, nic(netdev(speed=400_000))).at(1.0, nic(netdev(speed=None))).at(100.0)
    assert told.held == {}


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
def test_the_usual_speed_takes_a_majority_of_three_or_more(speeds: list[int], usual: int | None) -> None:
    assert links.usual_speed(speeds) == usual


def test_a_port_that_was_active_and_is_not_is_down() -> None:
    told = Told().at(0.0, nic(port())).at(5.0, nic(port("INIT")))
    assert told.held == {FindingKind.RDMA_PORT_DOWN: "mlx5_0/1 is INIT; it was active on this boot"}
    told.at(6.0, nic(port("DOWN")))
    assert told.held == {FindingKind.RDMA_PORT_DOWN: "mlx5_0/1 is DOWN; it was active on this boot"}
    told.at(7.0, nic(port())).at(7.0 + UP_FOR)
    assert told.held == {}


def test_a_roce_port_gets_the_time_that_netlink_may_take_to_tell_that_its_netdev_was_taken_down() -> None:
    told = Told().at(0.0, nic(port(roce=True))).at(5.0, nic(port("DOWN", roce=True)))
    assert told.held == {}
    told.at(6.0, nic(port("DOWN", roce=True)))
    assert FindingKind.RDMA_PORT_DOWN in told.at(5.0 + LIMITS.roce_lag).held
    assert told.count(FindingKind.RDMA_PORT_DOWN) == 1


def test_a_port_that_never_was_active_is_no_fault() -> None:
    assert Told().at(0.0, nic(port("DOWN"))).at(100.0, nic(port("DOWN"))).held == {}


def test_an_infiniband_port_below_its_peers_is_slow_and_a_roce_port_is_told_by_its_netdev() -> None:
    fast = [nic(port(speed=400_000), pci=pci) for pci in OTHERS]
    assert FindingKind.LINK_SLOW in Told().at(0.0, nic(port(speed=200_000)), *fast).at(LIMITS.slow_for).held
    roce = Told().at(0.0, nic(port(roce=True, speed=400_000))).at(1.0, nic(port(roce=True, speed=100_000)))
    assert roce.at(100.0).held == {}
