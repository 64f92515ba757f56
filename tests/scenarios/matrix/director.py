"""Control the proxies: hold each pod's restart at its place, and kubelet's actions."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from hack.devnode.criproxy import Call, Gate, When
from tests.scenarios.matrix.cells import Place

CHANGES = ("StopContainer", "CreateContainer", "StartContainer", "RemoveContainer")


@dataclass(slots=True)
class Director:
    """The agent's proxy: it identifies the pod of each call.

    ``calls`` has, by pod UID, the changing calls to the runtime.
    """

    calls: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _owners: dict[str, tuple[str, str]] = field(default_factory=dict)
    _gates: dict[str, Gate] = field(default_factory=dict)

    def knows(self, *, uid: str, name: str, container: str) -> None:
        """Record the pod of a container that kubelet has created."""
        self._owners[container] = (uid, name)

    def place(self, uid: str, where: Place) -> Gate:
        """Hold the pod's restart at that place."""
        counted: Counter[bool] = Counter()

        def matches(call: Call) -> bool:
            right = call.method == where.method and where.container in (None, self._owner(call)[1])
            counted[right] += 1
            return right and counted[True] == where.nth

        gate = self._gates[uid] = Gate(matches, where.when)
        return gate

    async def __call__(self, call: Call, when: When) -> None:
        if call.method not in CHANGES:
            return
        if call.method == "CreateContainer" and when is When.AFTER:
            self._owners[call.answer.container_id] = self._owner(call)
        uid, name = self._owner(call)
        if when is When.BEFORE:
            self.calls[uid].append(f"{call.method} {name}")
        if uid in self._gates:
            await self._gates[uid](call, when)

    def _owner(self, call: Call) -> tuple[str, str]:
        request = call.request
        if call.method == "CreateContainer":
            return request.sandbox_config.metadata.uid, request.config.metadata.name
        return self._owners.get(request.container_id, ("", ""))


@dataclass(slots=True)
class Reins:
    """Kubelet's proxy: its creations and removals wait while it is held.

    ``created`` counts, by pod UID, the containers that kubelet has requested.
    """

    created: Counter[str] = field(default_factory=Counter)
    _loose: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._loose.set()

    def tighten(self) -> None:
        """Hold kubelet's actions; it may still list and stop."""
        self._loose.clear()

    def loosen(self) -> None:
        """Release them."""
        self._loose.set()

    async def __call__(self, call: Call, when: When) -> None:
        if when is When.BEFORE and call.method in ("CreateContainer", "RemoveContainer"):
            await self._loose.wait()
            if call.method == "CreateContainer":
                self.created[call.request.sandbox_config.metadata.uid] += 1
