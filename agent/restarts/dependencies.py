"""The dependencies of restarts: the ports that ``agent.app`` supplies, the devices of pods, and the actuators."""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from kubemend.agent import ports
from kubemend.agent.actuator import context
from kubemend.agent.actuator.device_proof import Prover
from kubemend.agent.actuator.pod_strategies import PodActuator
from kubemend.agent.actuator.process import ProcessActuator
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.clients.podresources import convert
from kubemend.agent.devices.verdict_store import VerdictStore, gpu_keys
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.workloads import Allocations, ContainerRef, PodRef
from kubemend.common import aio


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Device allocations and device health."""

    holders: ports.Holders
    verdict_store: VerdictStore
    devices: ports.Devices

    async def held(self, pod: PodRef, names: Iterable[str], *, timeout: float) -> frozenset[DeviceId] | None:
        """Return the devices that these containers hold; None if kubelet does not answer in ``timeout`` seconds."""
        allocations = Allocations()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                backoff = aio.Backoff(first=0.02, limit=0.5)
                while not (allocations := await self.holders.current(max_age=1.0)).known:
                    await backoff.wait()
        parts = [convert.held_by(ContainerRef(pod, name), allocations) for name in names]
        known = [part for part in parts if part is not None]
        return frozenset[DeviceId]().union(*known) if len(known) == len(parts) else None

    async def until_listed(self, devices: frozenset[DeviceId], *, timeout: float) -> None:
        """Wait until the driver lists these devices, at most ``timeout`` seconds, because the agent may just start."""
        backoff = aio.Backoff(first=0.02, limit=0.1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not (inventory := self.devices.inventory).complete or not all(map(inventory.by_id, devices)):
                    await backoff.wait()

    def action(self, devices: frozenset[DeviceId]) -> ActionClass:
        """Return the most severe action that any of the devices needs now."""
        inventory = self.devices.inventory
        return self.verdict_store.worst_action(gpu_keys(devices, inventory=inventory), inventory=inventory)


@dataclass(frozen=True, slots=True)
class Actuators:
    """The actuators, and the services that all of them share."""

    tools: context.ActuatorContext
    process: ProcessActuator
    swap: SwapActuator
    pods: PodActuator

    @classmethod
    def of(cls, using: context.ActuatorContext, *, pods: ports.Pods) -> Self:
        """Create all actuators."""
        return cls(using, ProcessActuator(using), SwapActuator(using), PodActuator(using, pods=pods))


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Every external dependency of restarts.

    ``launchers`` None: the agent speaks with none. ``prover`` None: no GPU is proved before a start.
    ``device_facts`` None: the devices of restarts that a previous agent has begun are unknown.
    """

    runtime: ports.Runtime
    events: ports.Events
    pods: ports.Pods
    devices: ports.Devices
    owners: ports.Owners
    reporter: ports.Conditions
    processes: ports.Processes
    actuators: Actuators
    event_recorder: ports.EventRecorder = ports.NO_RECORDER
    heartbeats: ports.Heartbeats = ports.NO_HEARTBEATS
    launchers: ports.Launchers | None = None
    prover: Prover | None = None
    device_facts: DeviceFacts | None = None

    @property
    def holders(self) -> ports.Holders | None:
        """The holders of devices; None: unknown."""
        return self.device_facts.holders if self.device_facts is not None else None
