"""Which container holds which device, as kubelet's device manager with one device plugin.

The devices are a fixed list of ids for one extended resource. An allocation is made once per pod and container,
survives restarts of container and kubelet (checkpoint file), and ends when the pod is terminal or gone. Devices of
init containers are handed on to the containers after them.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.model.workloads import ContainerRole
from hack.devnode.kubelet.spec import Container, Pod

CHECKPOINT = "kubelet_internal_checkpoint"


class NotEnoughDevicesError(Exception):
    """The pod asks for more devices than are free; kubelet rejects it at admission."""


@dataclass(frozen=True, slots=True)
class Held:
    """The devices of one container."""

    namespace: str
    pod: str
    uid: str
    container: str
    ids: tuple[str, ...]


class DeviceManager:
    """Allocates the ids of one resource and remembers it in ``directory``."""

    def __init__(self, *, resource: str, ids: Sequence[str], directory: Path) -> None:
        self.resource = resource
        self.ids = tuple(ids)
        self._path = directory / CHECKPOINT
        self._held: dict[tuple[str, str], Held] = self._load()

    def admit(self, pod: Pod) -> None:
        """Allocate what the pod asks for. Raises NotEnoughDevicesError, and then nothing is allocated."""
        made, reusable = dict(self._held), list[str]()
        for container in pod.containers():
            wanted = self._wanted(container)
            known = made.get((pod.uid, container.name))
            if not wanted and known is None:
                continue
            ids = known.ids if known is not None else self._pick(wanted, reusable=reusable, held=made.values(), pod=pod)
            made[pod.uid, container.name] = Held(
                namespace=pod.namespace, pod=pod.name, uid=pod.uid, container=container.name, ids=ids
            )
            reusable = [item for item in reusable if item not in ids]
            if container.role is ContainerRole.INIT:
                reusable += ids
        self._store(made)

    def free(self, uid: str) -> None:
        """End a pod's allocations."""
        self._store({key: held for key, held in self._held.items() if held.uid != uid})

    def environment(self, pod: Pod, container: Container) -> dict[str, str]:
        """Return what the plugin's Allocate answer adds to the container's environment."""
        held = self._held.get((pod.uid, container.name))
        return {"NVIDIA_VISIBLE_DEVICES": ",".join(held.ids)} if held is not None else {}

    def held(self) -> tuple[Held, ...]:
        """Return all allocations."""
        return tuple(self._held.values())

    def _wanted(self, container: Container) -> int:
        limits = (container.raw.get("resources") or {}).get("limits") or {}
        return int(limits.get(self.resource, 0))

    def _pick(self, count: int, *, reusable: Sequence[str], held: Collection[Held], pod: Pod) -> tuple[str, ...]:
        taken = {item for other in held for item in other.ids}
        candidates = [*reusable, *(item for item in self.ids if item not in taken)]
        if len(candidates) < count:
            raise NotEnoughDevicesError(
                f"Allocate failed due to requested number of devices unavailable for {self.resource}. "
                f"Requested: {count}, Available: {len(candidates)}, which is unexpected (pod {pod})"
            )
        return tuple(candidates[:count])

    def _load(self) -> dict[tuple[str, str], Held]:
        try:
            entries = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        return {(entry["uid"], entry["container"]): _held(entry) for entry in entries}

    def _store(self, held: dict[tuple[str, str], Held]) -> None:
        if held == self._held:
            return
        self._held = held
        entries = [
            {"namespace": item.namespace, "pod": item.pod, "uid": item.uid, "container": item.container,
             "ids": list(item.ids)}
            for item in held.values()
        ]  # fmt: skip
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".tmp")
        fresh.write_text(json.dumps(entries))
        fresh.replace(self._path)


def _held(entry: Mapping[str, Any]) -> Held:
    return Held(
        namespace=entry["namespace"],
        pod=entry["pod"],
        uid=entry["uid"],
        container=entry["container"],
        ids=tuple(entry["ids"]),
    )
