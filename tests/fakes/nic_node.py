"""Provide a node with NICs: sysfs as files, links from a stand-in or from the kernel, and a source's findings on it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kubemend.agent.health.nic.links import LinkLimits
from kubemend.agent.health.nic.nic_inventory_state import NicMemory
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.findings import Finding, FindingKind
from kubemend.agent.sources.network.reader import Reader
from kubemend.agent.sources.network.source import NetworkSource, Periods
from kubemend.common.components import ComponentState, ComponentStatus
from tests.fakes.sysfs_tree import SysfsTree

BOOT = "34eb48e2-270a-4075-b5a4-94aac223f2dd"
QUICK = LinkLimits(up_for=0.2, link_training_timeout=0.3, roce_down_delay=0.1, flap_settle=0.4, slow_for=0.1)
OFTEN = Periods(ports=0.05, details=0.05, scan=0.2, deadline=60.0, retry=0.05)
ONE, TWO = "0000:18:00.0", "0000:19:00.0"


class Links(Protocol):
    """The links of a network namespace. The effect of a method is complete when it returns."""

    netns: Path | None

    def reader(self, *args: object, **kwargs: object) -> Reader:
        """Create their reader."""

    def add(self, name: str, *, up: bool = True) -> None:
        """Create an enabled link, with a carrier or without."""

    def carrier(self, name: str, *, up: bool) -> None:
        """Give or remove its carrier."""

    def admin(self, name: str, *, up: bool) -> None:
        """Enable or disable it."""

    def flap(self, name: str, times: int) -> None:
        """Lose the carrier that often; in the end it has one."""

    def remove(self, name: str) -> None:
        """Move it out of the namespace."""

    def leave_bridge(self, name: str) -> None:
        """Make it a port of a bridge, and remove it."""

    def flood(self, name: str) -> None:
        """Send more messages about a link than fit into any small buffer, without a break."""


@dataclass
class Notes:
    """All findings of the source."""

    findings: list[Finding] = field(default_factory=list)
    statuses: list[ComponentStatus] = field(default_factory=list)
    memory: NicMemory = field(default_factory=lambda: NicMemory(BOOT))
    overflows: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def emit(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.changed.set()

    def report(self, status: ComponentStatus) -> None:
        self.statuses.append(status)
        self.changed.set()

    def remember(self, memory: NicMemory) -> None:
        self.memory = memory
        self.changed.set()

    def overflowed(self, channel: str) -> None:
        self.overflows.append(channel)
        self.changed.set()

    @property
    def state(self) -> ComponentState | None:
        return self.statuses[-1].state if self.statuses else None

    def held(self, pci: str) -> dict[FindingKind, str]:
        """Return the active faults of a NIC, as the agent's fold keeps them."""
        held: dict[FindingKind, str] = {}
        for finding in self.findings:
            if finding.device.pci != PciAddress.parse(pci):
                continue
            if finding.kind is FindingKind.FAULT_OVER:
                held.pop(FindingKind(finding.code), None)
            else:
                held[finding.kind] = finding.text
        return held

    def over(self, pci: str, kind: FindingKind) -> bool:
        """Return whether the last finding on a kind of fault is its end."""
        said = [
            finding.kind
            for finding in self.findings
            if finding.device.pci == PciAddress.parse(pci) and kind in (finding.kind, FindingKind(finding.code or kind))
        ]
        return said[-1:] == [FindingKind.FAULT_OVER]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the findings fulfil the condition."""
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@dataclass
class NicNode:
    """The node. Two NICs are usual: the second one shows when the source has processed all events of the first one."""

    tree: SysfsTree
    links: Links

    def nic(self, pci: str, netdev: str, *, up: bool = True) -> None:
        """Plug in a NIC with one netdev."""
        self.tree.function(pci)
        self.tree.netdev(pci, netdev)
        self.links.add(netdev, up=up)

    @contextlib.asynccontextmanager
    async def running(
        self,
        notes: Notes,
        *,
        limits: LinkLimits = QUICK,
        periods: Periods = OFTEN,
        receive_buffer: int = 1 << 20,
        ignored: frozenset[str] = frozenset(),
        unasked: frozenset[str] = frozenset(),
    ) -> AsyncIterator[NetworkSource]:
        """Run a source as one life of the agent; a failure in it fails the test."""
        source = NetworkSource(
            emit=notes.emit,
            classify=lambda _kind, _code: ActionClass.OBSERVE,
            report=notes.report,
            meter=notes,
            known_before=notes.memory,
            remember=notes.remember,
            sysfs=self.tree.root,
            netns=self.links.netns,
            ignored=ignored,
            unasked=unasked,
            limits=limits,
            periods=periods,
            receive_buffer=receive_buffer,
            make_reader=self.links.reader,
        )
        task = asyncio.create_task(source.run())
        try:
            yield source
        finally:
            if not task.done():
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
