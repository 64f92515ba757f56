"""Verify a restart: what is asked, and for how long."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from kubemend.agent.model.devices import DeviceId
from kubemend.agent.restart.verification import CheckState
from kubemend.agent.restarts.verifier import RestartVerifier
from tests import virtual_time
from tests.fakes import outside


class BusyNode(outside.Devices):
    """A driver that answers, but late."""

    async def answering(self, uuids: Iterable[DeviceId], *, timeout: float) -> frozenset[DeviceId] | None:
        try:
            async with asyncio.timeout(timeout):
                await virtual_time.passes(5.0)
        except TimeoutError:
            return None
        return await super().answering(uuids, timeout=timeout)


def test_verification_on_a_busy_node_waits_for_the_driver() -> None:
    dependencies: Any = SimpleNamespace(devices=BusyNode())

    async def asked() -> CheckState:
        check = await RestartVerifier(dependencies=dependencies).devices_answer(frozenset({outside.GPU.uuid}))
        return check.state

    assert virtual_time.run(asked()) is CheckState.PASSED
