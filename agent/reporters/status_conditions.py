"""Keep desired and known conditions of one API object, compute the patch between them, and write it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import Condition
from kubemend.common.kube import client, errors, timestamps


@dataclass(eq=False, slots=True)
class StatusConditions:
    """The conditions of the object at ``path``. ``known`` None means that they have not been read yet.

    ``uid`` None accepts the first object that is found at the path.
    """

    path: str
    uid: str | None = None
    desired: dict[str, Condition] = field(default_factory=dict)
    known: dict[str, Condition] | None = None
    version: int = 0  # the resource version that ``known`` is from

    @property
    def unwritten(self) -> bool:
        """Return whether the API lacks a condition."""
        known = self.known or {}
        return any(known.get(condition.type) != condition for condition in self.desired.values())

    def learn(self, found: tuple[Condition, ...], *, version: str) -> None:
        """Adopt conditions from the API, unless they are older than the known ones.

        Resource versions can be compared as numbers (KEP-5504; in fact since etcd).
        """
        number = int(version) if version.isdecimal() else self.version
        if number >= self.version:
            self.version = number
            self.known = {condition.type: condition for condition in found}


async def write(api: client.KubeClient, target: StatusConditions, *, now: float, heartbeat: bool = False) -> bool:
    """Write one object's desired conditions; return whether that took a write.

    ``now`` is Unix time; for ``heartbeat`` see ``condition_patch``. Raises NotFoundError if the object is gone,
    even if there is a new one of its name; ConflictError if others write at the same time: try again, the known
    conditions are fresh; InvalidError if the server will never accept it: then it counts as written; other KubeErrors:
    try later.
    """
    try:
        if target.known is None:
            await _read(api, target)
        return await _patch(api, target, now=now, heartbeat=heartbeat)
    except (errors.ConflictError, errors.InvalidError) as error:
        # A new object of that name answers 422 (its UID is immutable), many writers at once 409: read to find out.
        await _read(api, target)
        if isinstance(error, errors.InvalidError):
            target.known = {**(target.known or {}), **target.desired}  # another write cannot help
        raise


async def _read(api: client.KubeClient, target: StatusConditions) -> None:
    """Read the object's conditions. Raises NotFoundError if it is another object by now."""
    found = await api.get(target.path)
    metadata = found["metadata"]
    if target.uid not in (None, metadata["uid"]):
        raise errors.NotFoundError(f"{target.path} has been replaced by another object of that name")
    target.uid = metadata["uid"]
    target.version = 0
    target.learn(tuple(conditions.ours(found.get("status") or {})), version=metadata["resourceVersion"])


async def _patch(api: client.KubeClient, target: StatusConditions, *, now: float, heartbeat: bool) -> bool:
    assert target.uid is not None
    desired, known = dict(target.desired), target.known or {}
    patch = condition_patch(desired=desired, known=known, uid=target.uid, now=now, heartbeat=heartbeat)
    if patch is None:
        return False
    written = await api.patch_status(target.path, patch)
    target.version = int(written["metadata"]["resourceVersion"])
    target.known = {**known, **desired}
    return True


def condition_patch(
    *, desired: Mapping[str, Condition], known: Mapping[str, Condition], uid: str, now: float, heartbeat: bool = False
) -> dict[str, Any] | None:
    """Return a strategic merge patch for a status subresource, or None if nothing differs.

    ``desired`` and ``known`` are keyed by type; ``now`` is Unix time. Lists of conditions merge by ``type``, so other
    writers' conditions stay. ``lastTransitionTime`` is sent only when the status changes; otherwise the merge keeps the
    old one (API conventions, "typical status properties"). The UID is a precondition: a new object of the same name is
    never patched. With ``heartbeat`` every condition is sent, changed or not, with the time at which it was last known
    to hold: only nodes' conditions have a field for that (core/v1 ``NodeCondition``).
    """
    changed = [
        _entry(condition, known.get(condition.type), now=now, heartbeat=heartbeat)
        for condition in desired.values()
        if heartbeat or known.get(condition.type) != condition
    ]
    return {"metadata": {"uid": uid}, "status": {"conditions": changed}} if changed else None


def _entry(condition: Condition, before: Condition | None, *, now: float, heartbeat: bool) -> dict[str, str]:
    entry = {
        "type": condition.type,
        "status": condition.status.value,
        "reason": condition.reason,
        "message": condition.message,
    }
    if heartbeat:
        entry["lastHeartbeatTime"] = timestamps.rfc3339(now)
    if before is None or before.status is not condition.status:
        entry["lastTransitionTime"] = timestamps.rfc3339(now)
    return entry
