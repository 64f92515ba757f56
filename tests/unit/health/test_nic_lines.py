"""Driver messages about network adapters."""

import pytest

from kubemend.agent.health.state import evidence
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import FindingKind
from tests.unit.health.reading import read, read_one


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            "poll_health:471:(pid 0): device's health compromised - reached miss count",
            FindingKind.NIC_FATAL,
        ),
        ("poll_health:800:(pid 0): Fatal error 3 detected", FindingKind.NIC_FATAL),
        (
            "print_health_info:425:(pid 912): Health issue observed, firmware internal error, severity(3) ERROR:",
            FindingKind.NIC_FATAL,
        ),
        ("print_health_info:410:(pid 0): synd 0x8: unrecoverable hardware error", FindingKind.NIC_FATAL),
        (
            "mlx5_health_try_recover:381:(pid 1): health recovery flow aborted, PCI reads still not working",
            FindingKind.NIC_FATAL,
        ),
        ("mlx5_health_try_recover:386:(pid 1): health recovery failed", FindingKind.NIC_FATAL),
        (
            "wait_func:964:(pid 112): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource",
            FindingKind.NIC_TIMEOUT,
        ),
        ("temp_warn:171:(pid 0): High temperature on sensors with bit set 0 1", FindingKind.NIC_HOT),
        ("print_health_info:520:(pid 0): synd 0x10: High temperature", FindingKind.NIC_HOT),
        (
            "print_health_info:425:(pid 9): Health issue observed, High temperature, severity(4) WARNING:",
            FindingKind.NIC_HOT,
        ),
        ("Port module event[error]: module 0, Cable error, High Temperature", FindingKind.NIC_HOT),
        (
            "port_module:252:(pid 0): Port module event[error]: module 0, Cable error, Bad or shorted cable/module",
            FindingKind.NIC_CABLE,
        ),
        ("Port module event[error]: module 0, Cable error, Power budget exceeded", FindingKind.NIC_CABLE),
    ],
)
def test_every_fault_message_is_a_finding_of_the_adapter(line: str, kind: FindingKind) -> None:
    finding = read_one(f"mlx5_core 0000:5c:00.1: {line}")

    assert (finding.kind, str(finding.device.pci)) == (kind, "0000:5c:00.1")
    assert finding.code == ""
    assert finding.pid is None, "the pid in the line was running at the time; it is not the cause"


@pytest.mark.parametrize(
    "line",
    [
        "mlx5_core 0000:65:00.0 eth0: TX timeout detected",
        "mlx5_core 0000:65:00.0 eth0: RX timeout on channel: 3, ICOSQ: 0x1 RQ: 0x2, CQ: 0x3",
        "mlx5_core 0000:65:00.0 eth0: NETDEV WATCHDOG: CPU: 5: transmit queue 0 timed out 5032 ms",
        "bnxt_en 0000:65:00.0 eth0: NETDEV WATCHDOG: CPU: 5: transmit queue 0 timed out 5032 ms",
    ],
)
def test_stuck_queue_is_a_timeout_on_its_interface(line: str) -> None:
    finding = read_one(line)

    assert (finding.kind, finding.action) == (FindingKind.NIC_TIMEOUT, ActionClass.OBSERVE)
    assert finding.evidence[evidence.INTERFACE] == "eth0"


@pytest.mark.parametrize(
    "line",
    [
        "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 26): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resou",
        "mlx5_core 0000:03:00.0: firmware version: 20.41.1000",
        "mlx5_core 0000:03:00.0: Port module event: module 0, Cable disabled",
        "mlx5_core 0000:03:00.0: print_health_info:410:(pid 0): synd 0x0: unrecognized error",
        "mlx5_core 0000:03:00.0: print_health_info:425:(pid 9): Health issue observed, EQ error, severity(6) INFO:",
        "mlx5_core 0000:03:00.0: print_health_info:411:(pid 0): assert_var[0] 0x00000000",
        "mlx5_core 0000:65:00.0 eth0: TX timeout on queue: 0, SQ: 0x1, CQ: 0x2, SQ Cons: 0x3 SQ Prod: 0x4",
        "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out",
        "mlx5_core 0000:03:00: TX timeout detected",
        "other_core 0000:03:00.0: TX timeout detected",
        "trainer: mlx5_core 0000:03:00.0 eth0: TX timeout detected",
    ],
)
def test_other_lines_give_no_finding(line: str) -> None:
    assert read(line) == []


def test_unplugged_cage_is_a_fault_only_if_it_had_a_cable() -> None:
    adapter = "mlx5_core 0000:5c:00.0: "
    never = f"{adapter}Port module event: module 1, Cable unplugged"
    plugged = f"{adapter}Port module event: module 0, Cable plugged"
    unplugged = f"{adapter}Port module event: module 0, Cable unplugged"

    assert read(never) == []
    assert [(each.kind, each.code) for each in read(plugged, never, unplugged, plugged)] == [
        (FindingKind.FAULT_OVER, "NicCable"),
        (FindingKind.NIC_CABLE, ""),
        (FindingKind.FAULT_OVER, "NicCable"),
    ]


@pytest.mark.parametrize("word", ["health recovery succeeded", "health revovery succeded"])
def test_recovered_adapter_is_healthy_again(word: str) -> None:
    findings = read(f"mlx5_core 0000:5c:00.0: mlx5_health_try_recover:391:(pid 1): {word}")

    assert [(each.kind, each.code) for each in findings] == [
        (FindingKind.FAULT_OVER, "NicFatal"),
        (FindingKind.FAULT_OVER, "NicTimeout"),
    ]
