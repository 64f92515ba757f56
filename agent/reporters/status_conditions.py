"""Conditions of one object of the API: what they should be, what they are, and the write that makes both the same."""

from dataclasses import dataclass, field

from agent.model import conditions
from agent.model.conditions import Condition
from agent.reporters import condition_patch
from common.kube import client, errors


@dataclass(eq=False, slots=True)
class StatusConditions:
    """One object at ``path``. ``known`` None means that nobody has looked yet what it has.

    ``uid`` None takes the first object that is found there for the one that is meant.
    """

    path: str
    uid: str | None = None
    desired: dict[str, Condition] = field(default_factory=dict)
    known: dict[str, Condition] | None = None
    version: int = 0  # the resource version that ``known`` is from

    @property
    def unsaid(self) -> bool:
        """Whether the API lacks something."""
        known = self.known or {}
        return any(known.get(condition.type) != condition for condition in self.desired.values())

    def learn(self, found: tuple[Condition, ...], *, version: str) -> None:
        """Take over what is in the API, unless it is older than what we know.

        Resource versions can be compared as numbers (KEP-5504; in fact since etcd).
        """
        number = int(version) if version.isdecimal() else self.version
        if number >= self.version:
            self.version = number
            self.known = {condition.type: condition for condition in found}


async def write(api: client.KubeClient, target: StatusConditions, *, now: float, heartbeat: bool = False) -> bool:
    """Bring one object's conditions to what they should be; return whether that took a write.

    ``now`` is Unix time; for ``heartbeat`` see ``condition_patch.merge``. Raises NotFoundError when the object is
    gone, be there a new one of its name or not; ConflictError when others write at the same time: try again, what is
    known is fresh; InvalidError when the server will never take it: it counts as said; other KubeErrors: later.
    """
    try:
        if target.known is None:
            await _look(api, target)
        return await _patch(api, target, now=now, heartbeat=heartbeat)
    except (errors.ConflictError, errors.InvalidError) as error:
        # A new object of that name answers 422 (its UID is immutable), many writers at once 409: find out.
        await _look(api, target)
        if isinstance(error, errors.InvalidError):
            target.known = {**(target.known or {}), **target.desired}  # saying it again cannot help
        raise


async def _look(api: client.KubeClient, target: StatusConditions) -> None:
    """Read what the API has. Raises NotFoundError when it is another object by now."""
    found = await api.get(target.path)
    metadata = found["metadata"]
    if target.uid not in (None, metadata["uid"]):
        raise errors.NotFoundError(f"{target.path} is another object of that name by now")
    target.uid = metadata["uid"]
    target.version = 0
    target.learn(tuple(conditions.ours(found.get("status") or {})), version=metadata["resourceVersion"])


async def _patch(api: client.KubeClient, target: StatusConditions, *, now: float, heartbeat: bool) -> bool:
    assert target.uid is not None
    desired, known = dict(target.desired), target.known or {}
    patch = condition_patch.merge(desired=desired, known=known, uid=target.uid, now=now, heartbeat=heartbeat)
    if patch is None:
        return False
    written = await api.patch_status(target.path, patch)
    target.version = int(written["metadata"]["resourceVersion"])
    target.known = {**known, **desired}
    return True
