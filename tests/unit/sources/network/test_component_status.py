"""The status of the network source: one line in the agent's log for each change."""

import errno

from kubemend.agent.sources.network.component_status import SYSFS, Statuses
from kubemend.common.components import ComponentState, ComponentStatus

REFUSED = OSError(errno.EPERM, "Operation not permitted")


def test_components_that_fail_at_each_try_are_reported_once() -> None:
    reported: list[ComponentStatus] = []
    statuses = Statuses(report=reported.append, needed=frozenset({SYSFS, "links", "uevents"}))
    for _ in range(3):
        statuses.netlink_away("uevents", REFUSED)
        statuses.netlink_away("links", REFUSED)
    assert [each.message for each in reported] == ["netlink does not deliver uevents: Operation not permitted"]

    for name in ("uevents", "links", SYSFS):
        statuses.well(name, idle=False)
    assert [(each.state, each.message[:30]) for each in reported[1:]] == [
        (ComponentState.DEGRADED, "netlink does not deliver links"),
        (ComponentState.READY, ""),
    ]
