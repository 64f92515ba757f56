"""The verbs of ``common.kube.client.KubeClient`` on the API stand-in's store, without HTTP."""

from collections.abc import Callable
from typing import Final

from common.kube import client, errors, paths
from common.kube.transport import Body
from hack.devnode.api import errors as refusals
from hack.devnode.api.handler import Handler
from hack.devnode.api.operations import Operations, Place
from hack.jobset_scenarios.stage import Json

_SERVER: Final = "memory"


class MemoryApi:
    """A ``stage.Api``. What is read is the store's own: to be looked at only."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        """``clock`` gives Unix seconds."""
        self._handler = Handler(token=None, clock=clock)

    async def get(self, path: str) -> Json:
        """Return one object."""
        return self._call("GET", path, lambda verbs, place: verbs.get(place))

    async def list(self, path: str, *, params: client.Params | None = None) -> client.Listing:
        """Return the objects of a collection."""
        assert not params, "selectors are for servers"
        answer = self._call("GET", path, lambda verbs, place: verbs.list(place, lambda _: True))
        return client.Listing(answer["items"], resource_version=answer["metadata"]["resourceVersion"])

    async def create(self, path: str, body: Json) -> Json:
        """Create an object."""
        return self._call("POST", path, lambda verbs, place: verbs.create(place, body))

    async def update(self, path: str, body: Json) -> Json:
        """Replace an object, or its status."""
        return self._call("PUT", path, lambda verbs, place: verbs.update(place, body))

    async def patch(self, path: str, body: Body, *, content_type: client.Patch = client.Patch.STRATEGIC) -> Json:
        """Patch an object, or its status."""
        kind = content_type.value
        return self._call("PATCH", path, lambda verbs, place: verbs.patch(place, body, content_type=kind))

    async def delete(self, path: str, *, options: Json | None = None) -> Json:
        """Delete an object."""
        return self._call("DELETE", path, lambda verbs, place: verbs.delete(place, options or {}))

    def _call(self, method: str, path: str, do: Callable[[Operations, Place], Json]) -> Json:
        place = self._handler.place(path)
        assert place is not None, path
        try:
            return do(self._handler.operations, place)
        except refusals.ApiError as error:
            target = paths.describe(method, path)
            raise errors.from_status(target, server=_SERVER, status=error.status, answer=error.body()) from error
