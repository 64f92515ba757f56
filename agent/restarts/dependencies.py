"""Hold what restarts need: the ports that ``agent.app`` supplies, and the actuators."""

from dataclasses import dataclass
from typing import Self

from kubemend.agent import ports
from kubemend.agent.actuator import context
from kubemend.agent.actuator.cache_cleanup import CacheCleaner
from kubemend.agent.actuator.device_proof import Prover
from kubemend.agent.actuator.device_release import ReleaseGates
from kubemend.agent.actuator.layer_keeping import LayerKeeper
from kubemend.agent.actuator.pod_strategies import PodActuator
from kubemend.agent.actuator.process import ProcessActuator
from kubemend.agent.actuator.shm_cleanup import ShmCleaner
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.restarts.device_facts import DeviceFacts


@dataclass(frozen=True, slots=True)
class Actuators:
    """Hold the actuators, the device release gates that all share, and what is done before a start."""

    process: ProcessActuator
    swap: SwapActuator
    pods: PodActuator
    gates: ReleaseGates
    broom: ShmCleaner
    caches: CacheCleaner
    layers: LayerKeeper

    @classmethod
    def of(cls, using: context.ActuatorContext, *, pods: ports.Pods) -> Self:
        """Create all actuators."""
        return cls(
            process=ProcessActuator(using),
            swap=SwapActuator(using),
            pods=PodActuator(using, pods=pods),
            gates=using.gates,
            broom=using.broom,
            caches=using.caches,
            layers=using.layers,
        )


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Hold every external dependency of restarts.

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
    announcements: ports.Announcements = ports.NO_RECORDER
    heartbeats: ports.Heartbeats = ports.NO_HEARTBEATS
    launchers: context.Launchers | None = None
    prover: Prover | None = None
    device_facts: DeviceFacts | None = None
