"""A node's devices, and an operator."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from kubemend.agent.devices.operator_commands import OperatorCommands
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceLocator, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.verdicts import Health
from tests.environments import node
from tests.fakes import outside

NIC = PciAddress.parse("0000:c1:00.0")


@dataclass
class Handles:
    """The driver's handles; ``hangs``: a call never returns, ``slow``: a call returns late."""

    hangs: bool = False
    slow: bool = False
    held: bool = True
    resumed: asyncio.Event = field(default_factory=asyncio.Event)
    on_release: Callable[[], object] = lambda: None

    async def release(self, *, timeout: float) -> bool:
        self.held = self.hangs
        self.on_release()
        if self.slow:
            await asyncio.Event().wait()
        return not self.hangs

    def resume(self) -> None:
        self.held = True
        self.resumed.set()


@dataclass
class Node:
    verdict_store: VerdictStore
    operators: OperatorCommands
    handles: Handles
    forgotten: list[str]
    nics: list[str]
    unobserved: set[FindingKind]
    devices: outside.Devices

    def found(self, kind: FindingKind, action: ActionClass, *, device: DeviceLocator, code: str = "") -> None:
        finding = Finding(Source.KERNEL_LOG, kind, code, device, action, observed_at=10.0)
        self.verdict_store.apply(finding, inventory=outside.Devices().inventory)

    def health(self, device: str) -> Health:
        return self.verdict_store.verdict(device, inventory=outside.Devices().inventory).health


GPU = DeviceLocator(uuid=outside.GPU.uuid)


@contextlib.asynccontextmanager
async def node_in(directory: Path) -> AsyncIterator[Node]:
    """A node whose state is in that directory."""
    handles, forgotten, nics, unobserved = Handles(), list[str](), list[str](), set[FindingKind]()
    async with node.node_in(directory) as env:
        verdict_store, devices = env.verdict_store, env.devices
        operators = OperatorCommands(
            verdict_store=verdict_store,
            devices=devices,
            handles=handles,
            submit=lambda finding: void(verdict_store.apply(finding, inventory=devices.inventory)),
            forget=(forgotten.append,),
            others=lambda: nics,
            unobserved=lambda _: unobserved,
            now=lambda: 20.0,
        )
        yield Node(verdict_store, operators, handles, forgotten, nics, unobserved, devices)


def void(_: object) -> None:
    return
