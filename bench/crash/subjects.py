"""Define the tested pods: every restart policy, several shapes, every strategy that the agent carries out itself."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from hack.devnode import trainer
from kubemend.agent.restart import options
from kubemend.agent.restart.intents import Strategy

INIT: Final = "prepare"
SIDECAR: Final = "shipper"
_LEASE_PORTS: Final = MappingProxyType({"trainer": 7001, "worker": 7002, SIDECAR: 7003})
_EXITS_ON_TERM = "trap 'exit 0' TERM\n"
DIES_OF: Final = signal.SIGUSR1
DIED: Final = 3
_DIES = f"trap 'exit {DIED}' USR1\n"
_MANY = 1_000_000


@dataclass(frozen=True, slots=True)
class Subject:
    """Describe one kind of pod, with an init container.

    ``mains`` are its main containers, which a swap replaces together; ``grace`` is in seconds. ``dies``: they exit by
    themselves, with code ``DIED``, at most 50 ms after the signal ``DIES_OF``.
    """

    name: str
    policy: str = "OnFailure"
    strategy: Strategy = Strategy.SWAP
    mains: tuple[str, ...] = ("trainer",)
    sidecar: bool = True
    grace: int = 0
    dies: bool = False

    @property
    def lasting(self) -> frozenset[str]:
        """Return the containers that run permanently."""
        return frozenset({SIDECAR, *self.mains} if self.sidecar else self.mains)

    @property
    def replaced(self) -> frozenset[str]:
        """Return the containers that a restart replaces by others that run permanently."""
        return frozenset(self.mains) if self.strategy is Strategy.SWAP else self.lasting

    @property
    def restarted(self) -> frozenset[str]:
        """Return all containers that a restart runs again; others must be left alone."""
        return self.replaced if self.strategy is Strategy.SWAP else self.replaced | {INIT}

    def manifest(self, *, node: str) -> dict[str, Any]:
        """Return the pod; its mains count steps, and the first of them holds a GPU."""
        made = trainer.manifest(
            self.name, node=node, gpus=1, restart_policy=self.policy, annotations=self._annotations(),
            sidecar=self.sidecar, script=self._script("trainer"),
        )  # fmt: skip
        spec = made["spec"]
        for container in spec["initContainers"]:
            if container["name"] == SIDECAR:
                container["command"][-1] = trainer.leased(trainer.SIDECAR, name=SIDECAR, port=_LEASE_PORTS[SIDECAR])
        (first,) = spec["containers"]
        for name in self.mains[1:]:
            other = {key: value for key, value in first.items() if key != "resources"}
            spec["containers"].append({**other, "name": name, "command": ["/bin/sh", "-c", self._script(name)]})
        if self.strategy is Strategy.RULES:
            first.update(trainer.RESTARTS_ALL_ON_KILL)
        return made

    def _script(self, name: str) -> str:
        leased = trainer.leased(trainer.TRAIN, name=name, port=_LEASE_PORTS[name])
        return (_EXITS_ON_TERM if self.grace else "") + (_DIES if self.dies else "") + leased

    def _annotations(self) -> Mapping[str, str]:
        return {
            options.RESTART: options.IN_PLACE,
            options.STRATEGY: self.strategy.value,
            options.GRACE_PERIOD: str(self.grace),
            options.CONTAINERS: ",".join(self.mains) if len(self.mains) > 1 else "",
            options.MAX_RESTARTS: str(_MANY),
        }


ALL: Final = (
    Subject("always", policy="Always"),
    Subject("on-failure"),
    Subject("never", policy="Never"),
    Subject("never-alone", policy="Never", sidecar=False),
    Subject("pair", mains=("trainer", "worker")),
    Subject("never-pair", policy="Never", mains=("trainer", "worker")),
    Subject("graceful", policy="Always", grace=2),
    Subject("rerun", strategy=Strategy.RERUN),
    Subject("reset", policy="Always", strategy=Strategy.RESET),
    Subject("rules", policy="Never", strategy=Strategy.RULES),
)
