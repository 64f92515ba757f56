"""The writes to Restart objects. Each can be repeated after a lost answer, and those of a previous leader fail."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubemend.common.kube import client, errors
from kubemend.controller.restarts import names, objects
from kubemend.controller.restarts.objects import Json, NewRound, Restart

_TRIES: Final = 3
"""How often taking over a request is tried at once, each time with its current state."""


class SupersededError(Exception):
    """The object is deleted, replaced, or belongs to another leader by now. The text has the reason."""


@dataclass(frozen=True, slots=True)
class Written:
    """An object as last read: the preconditions of later writes. ``epoch`` "": it is no round."""

    namespace: str
    name: str
    uid: str
    generation: int
    epoch: str

    @property
    def path(self) -> str:
        """Return its path."""
        return names.path(self.namespace, self.name)


def written(obj: Mapping[str, Any]) -> Written:
    """Return the preconditions for later writes to an object."""
    metadata = obj["metadata"]
    epoch = (metadata.get("annotations") or {}).get(names.EPOCH, "")
    return Written(metadata["namespace"], metadata["name"], metadata["uid"], int(metadata.get("generation", 1)), epoch)


async def create(api: client.KubeClient, name: str, new: NewRound) -> Written:
    """Create a round's object. Raises KubeError, and SupersededError if another object has its name."""
    namespace = new.gang.namespace
    try:
        return written(await api.create(names.collection(namespace), new.body(name)))
    except errors.AlreadyExistsError as error:
        found = await api.get(names.path(namespace, name))
        if _annotations(found).get(names.ROUND) == new.annotations()[names.ROUND]:
            return written(found)  # this leader's; the answer was lost
        raise SupersededError(f"{namespace}/{name} is another Restart") from error


async def adopt(api: client.KubeClient, request: Restart, new: NewRound) -> Written:
    """Turn a request into a round. Raises KubeError, and SupersededError if another leader did, or it was deleted.

    ConflictError: repeated conflicts with other writers. Retrying is left to the caller.
    """
    path = names.path(request.namespace, request.name)
    version = request.version
    tries = itertools.count(1)
    while True:
        metadata = {"resourceVersion": version, "labels": new.labels(), "annotations": new.annotations()}
        try:
            return written(await api.patch(path, {"metadata": metadata}, content_type=client.Patch.MERGE))
        except errors.NotFoundError as error:
            raise SupersededError(f"{request.id} was deleted") from error
        except errors.ConflictError as error:
            found = await _same(api, path, uid=request.uid, error=error)
            if _is_taken(found, request, new):
                return written(found)  # taken by this leader; the answer was lost
            if next(tries) == _TRIES:
                raise
        version = found["metadata"]["resourceVersion"]  # for example, its labels were changed


async def resume(api: client.KubeClient, before: Written, *, epoch: int) -> Written:
    """Take a round over from a previous leader, whose writes to it then fail. Raises KubeError, SupersededError."""
    change = [*_presupposed(before), {"op": "replace", "path": _pointer(names.EPOCH), "value": str(epoch)}]
    try:
        return written(await api.patch(before.path, change, content_type=client.Patch.JSON))
    except errors.NotFoundError as error:
        raise SupersededError(f"{before.namespace}/{before.name} was deleted") from error
    except errors.InvalidError as error:
        found = written(await _same(api, before.path, uid=before.uid, error=error))
        if found.epoch == str(epoch):
            return found  # this leader's; the answer was lost
        raise SupersededError(f"{before.namespace}/{before.name} belongs to epoch {found.epoch or 'none'}") from error


async def write_status(api: client.KubeClient, before: Written, status: Mapping[str, Any], *, now: float) -> None:
    """Replace an object's status; ``now`` is Unix time.

    Raises SupersededError as above, InvalidError if the server will never accept it, and other KubeErrors.
    """
    completed = objects.completed(status, generation=before.generation, now=now)
    change = [*_presupposed(before), {"op": "add", "path": "/status", "value": completed}]
    try:
        await api.patch_status(before.path, change, content_type=client.Patch.JSON)
    except errors.NotFoundError as error:
        raise SupersededError(f"{before.namespace}/{before.name} was deleted") from error
    except errors.InvalidError as error:
        found = written(await _same(api, before.path, uid=before.uid, error=error))
        if found.epoch != before.epoch:
            raise SupersededError(f"{before.namespace}/{before.name} belongs to epoch {found.epoch}") from error
        raise


async def remove(api: client.KubeClient, restart: Restart) -> None:
    """Delete an object unless it is deleted already. Raises KubeError."""
    options = {"preconditions": {"uid": restart.uid}, "propagationPolicy": "Background"}
    try:
        await api.delete(names.path(restart.namespace, restart.name), options=options)
    except (errors.NotFoundError, errors.ConflictError):
        return


def _presupposed(before: Written) -> list[Json]:
    """Return the tests that a patch begins with: the same object, and still its leader's."""
    tests = [{"op": "test", "path": "/metadata/uid", "value": before.uid}]
    if before.epoch:
        tests.append({"op": "test", "path": _pointer(names.EPOCH), "value": before.epoch})
    return tests


async def _same(api: client.KubeClient, path: str, *, uid: str, error: errors.KubeError) -> Json:
    """Return the object that a write was refused for; raises SupersededError unless it is the same one."""
    found = await client.get_by_uid(api, path, uid=uid)
    if found is None:
        raise SupersededError(f"{path} was deleted or replaced") from error
    return found


def _is_taken(found: Json, request: Restart, new: NewRound) -> bool:
    """Return whether a request has become this very round. Raises SupersededError if it is another one."""
    annotations, ours = _annotations(found), new.annotations()
    if names.ROUND not in annotations:
        return False
    if any(annotations.get(each) != ours[each] for each in (names.ROUND, names.EPOCH)):
        raise SupersededError(f"{request.id} is a round already")
    return True


def _annotations(obj: Mapping[str, Any]) -> Mapping[str, str]:
    return obj["metadata"].get("annotations") or {}


def _pointer(annotation: str) -> str:
    """Return the JSON pointer of an annotation (RFC 6901)."""
    return f"/metadata/annotations/{annotation.replace('~', '~0').replace('/', '~1')}"
