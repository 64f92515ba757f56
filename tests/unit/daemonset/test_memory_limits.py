"""All that views may keep together fits into the limits of the manifests."""

from typing import Final

from bench.memory import __main__ as memory
from kubemend.agent.clients.cri import cache
from kubemend.agent.restarts import config_shares
from kubemend.agent.sources import pod_objects
from kubemend.controller.gangs import members
from kubemend.controller.hub.limits import Caps
from kubemend.controller.jobsets import invalid_objects, placement_reconciler
from kubemend.controller.restarts import objects
from kubemend.controller.watches.members import SELECTORS

_MIB: Final = 2**20
_AGENT: Final = 76 * _MIB
"""An agent that watches a node (docs/performance.md)."""
_READING: Final = 57 * _MIB
"""While objects as large as possible are read (docs/operations.md, like the next two)."""
_CODE: Final = 45 * _MIB
_PODS_OF_A_NODE: Final = 110
"""Kubelet's default (``maxPods``)."""
_CONNECTION: Final = 88 * 2**10
"""Of an agent, with its stream (docs/operations.md)."""


def test_agent_with_everything_at_its_bound_has_room_for_a_second_list() -> None:
    pods = pod_objects.MOST_OF_ALL
    assert pods >= 2 * pod_objects.MOST_OF_A_NAMESPACE
    configs = config_shares.MOST + _PODS_OF_A_NODE * config_shares.ORDINARY
    assert _AGENT + _READING + 2 * pods + cache.MOST_OF_ALL + configs < memory.limit_of("agent")


def test_controller_with_everything_at_its_bound_stays_within_its_limit() -> None:
    views = (
        len(SELECTORS) * members.MOST_OF_A_WATCH,
        invalid_objects.MOST_OF_JOBSETS,
        invalid_objects.MOST_OF_JOBS,
        objects.MOST_OF_ALL,
        placement_reconciler.MOST_OF_ALL,
    )
    assert sum(views) == 640 * _MIB  # docs/operations.md
    connections = Caps().connections * _CONNECTION
    assert connections == 528 * _MIB  # docs/operations.md
    assert _CODE + connections + sum(views) + 32 * _MIB < memory.limit_of("controller")
