"""The writes to Restart objects, each of which can be sent again after a lost answer, and none by a former leader."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from common.kube import by_uid, client, errors
from controller.restarts import names, objects
from controller.restarts.objects import Json, NewRound, Restart

_TRIES: Final = 3
"""How often a request is taken at once, each time as it is by then."""


class SupersededError(Exception):
    """The object is gone, is another one of its name, or belongs to another leader by now. The text says which."""


@dataclass(frozen=True, slots=True)
class Written:
    """An object as we have last seen it: what a later write presupposes. ``epoch`` "": it is no round."""

    namespace: str
    name: str
    uid: str
    generation: int
    epoch: str

    @property
    def path(self) -> str:
        """Its path."""
        return names.path(self.namespace, self.name)


def written(obj: Mapping[str, Any]) -> Written:
    """Return what to presuppose of an object from now on."""
    metadata = obj["metadata"]
    epoch = (metadata.get("annotations") or {}).get(names.EPOCH, "")
    return Written(metadata["namespace"], metadata["name"], metadata["uid"], int(metadata.get("generation", 1)), epoch)


async def create(api: client.KubeClient, name: str, new: NewRound) -> Written:
    """Create a round's object. Raises KubeError, and SupersededError when another one has its name."""
    namespace = new.gang.namespace
    try:
        return written(await api.create(names.collection(namespace), new.body(name)))
    except errors.AlreadyExistsError as error:
        found = await api.get(names.path(namespace, name))
        if _annotations(found).get(names.ROUND) == new.annotations()[names.ROUND]:
            return written(found)  # ours, and the answer was lost
        raise SupersededError(f"{namespace}/{name} is another Restart") from error


async def take(api: client.KubeClient, request: Restart, new: NewRound) -> Written:
    """Make a round of a request. Raises KubeError, and SupersededError when another leader has, or it is gone.

    ConflictError: it was refused again and again, by whoever else has a say about it. To try on is the caller's.
    """
    path = names.path(request.namespace, request.name)
    version = request.version
    tries = itertools.count(1)
    while True:
        metadata = {"resourceVersion": version, "labels": new.labels(), "annotations": new.annotations()}
        try:
            return written(await api.patch(path, {"metadata": metadata}, content_type=client.Patch.MERGE))
        except errors.NotFoundError as error:
            raise SupersededError(f"{request.id} is gone") from error
        except errors.ConflictError as error:
            found = await _same(api, path, uid=request.uid, error=error)
            if _is_taken(found, request, new):
                return written(found)  # by us, and the answer was lost
            if next(tries) == _TRIES:
                raise
        version = found["metadata"]["resourceVersion"]  # somebody changed its labels, say


async def resume(api: client.KubeClient, before: Written, *, epoch: int) -> Written:
    """Take a round over from a former leader, who cannot write to it any more. Raises KubeError, SupersededError."""
    change = [*_presupposed(before), {"op": "replace", "path": _pointer(names.EPOCH), "value": str(epoch)}]
    try:
        return written(await api.patch(before.path, change, content_type=client.Patch.JSON))
    except errors.NotFoundError as error:
        raise SupersededError(f"{before.namespace}/{before.name} is gone") from error
    except errors.InvalidError as error:
        found = written(await _same(api, before.path, uid=before.uid, error=error))
        if found.epoch == str(epoch):
            return found  # ours, and the answer was lost
        raise SupersededError(f"{before.namespace}/{before.name} belongs to epoch {found.epoch or 'none'}") from error


async def write_status(api: client.KubeClient, before: Written, status: Mapping[str, Any], *, now: float) -> None:
    """Replace an object's status; ``now`` is Unix time.

    Raises SupersededError as above, InvalidError when the server will never take it, and other KubeErrors.
    """
    told = objects.completed(status, generation=before.generation, now=now)
    change = [*_presupposed(before), {"op": "add", "path": "/status", "value": told}]
    try:
        await api.patch_status(before.path, change, content_type=client.Patch.JSON)
    except errors.NotFoundError as error:
        raise SupersededError(f"{before.namespace}/{before.name} is gone") from error
    except errors.InvalidError as error:
        found = written(await _same(api, before.path, uid=before.uid, error=error))
        if found.epoch != before.epoch:
            raise SupersededError(f"{before.namespace}/{before.name} belongs to epoch {found.epoch}") from error
        raise


async def remove(api: client.KubeClient, restart: Restart) -> None:
    """Delete an object, or find that it is gone. Raises KubeError."""
    options = {"preconditions": {"uid": restart.uid}, "propagationPolicy": "Background"}
    try:
        await api.delete(names.path(restart.namespace, restart.name), options=options)
    except (errors.NotFoundError, errors.ConflictError):
        return


def _presupposed(before: Written) -> list[Json]:
    """Return the tests that a patch begins with: this very object, and still its leader's."""
    tests = [{"op": "test", "path": "/metadata/uid", "value": before.uid}]
    if before.epoch:
        tests.append({"op": "test", "path": _pointer(names.EPOCH), "value": before.epoch})
    return tests


async def _same(api: client.KubeClient, path: str, *, uid: str, error: errors.KubeError) -> Json:
    """Return the object that a write was refused for; raises SupersededError unless it is the one that is meant."""
    found = await by_uid.get(api, path, uid=uid)
    if found is None:
        raise SupersededError(f"{path} is gone, or another object by now") from error
    return found


def _is_taken(found: Json, request: Restart, new: NewRound) -> bool:
    """Whether a request is this very round by now. Raises SupersededError when it is another one."""
    told, ours = _annotations(found), new.annotations()
    if names.ROUND not in told:
        return False
    if any(told.get(each) != ours[each] for each in (names.ROUND, names.EPOCH)):
        raise SupersededError(f"{request.id} is a round already")
    return True


def _annotations(obj: Mapping[str, Any]) -> Mapping[str, str]:
    return obj["metadata"].get("annotations") or {}


def _pointer(annotation: str) -> str:
    """Return the JSON pointer of an annotation (RFC 6901)."""
    return f"/metadata/annotations/{annotation.replace('~', '~0').replace('/', '~1')}"
