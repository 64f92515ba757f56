"""HTTP requests in, API operations done. kmock's scaffold serves discovery; the objects are ours.

kmock's own emulator keeps no resource versions, status subresources or watch history, and cannot parse the path of
the namespaces collection; so only its catalogue of resources and its discovery endpoints are used.
"""

import asyncio
import http
import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

import kmock
from aiohttp import web

from hack.devnode.api import errors, faults, metadata, selectors, watches
from hack.devnode.api.operations import Operations, Place
from hack.devnode.api.registry import Registry, Resource
from hack.devnode.api.store import Store

Object = dict[str, Any]

_OPEN: Final = ("/readyz", "/livez", "/healthz", "/version")
_SUBRESOURCES: Final = ("", "status")
_TOKEN: Final = ("serviceaccounts", "token")
_BINDING: Final = ("pods", "binding")


def _review(group: str, kind: str) -> Resource:
    plural = f"{kind.lower()}s"
    return Resource(group=group, version="v1", plural=plural, kind=kind, namespaced=False, has_status=False)


_ACCESS_REVIEW: Final = _review("authorization.k8s.io", "SelfSubjectAccessReview")
_TOKEN_REVIEW: Final = _review("authentication.k8s.io", "TokenReview")


class Handler:
    """Answers requests. ``token`` must be the bearer's; None lets everybody in. ``bookmark_period`` is in seconds.

    ``clock`` gives Unix seconds.
    """

    def __init__(
        self,
        *,
        token: str | None,
        bookmark_period: float = 60.0,
        history: int = 10_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._scaffold = kmock.KubernetesScaffold()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # kmock reads its file with importlib's old functions
            self._scaffold.resources.load_bundled()
        self._scaffold["get /version"] << {"major": "1", "minor": "36", "gitVersion": "v1.36.0-stand-in"}
        self._registry = Registry(self._scaffold.resources)
        self._token = token
        self._bookmark_period = bookmark_period
        self._streams: set[asyncio.Transport] = set()
        self.store = Store(history=history)
        self.faults = faults.Faults()
        self.operations = Operations(store=self.store, registry=self._registry, clock=clock)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; this is aiohttp's low-level handler."""
        try:
            return await self._answer(request)
        except errors.ApiError as error:
            headers = {"Retry-After": str(error.retry_after)} if error.retry_after is not None else None
            return web.json_response(error.body(), status=error.status, headers=headers)

    def drop_watches(self) -> None:
        """Break the connection of every watch, in the middle of whatever it was saying."""
        for connection in tuple(self._streams):
            connection.abort()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path.startswith("/stand-in/"):
            return await self._control(request)
        self.faults.check(method=request.method, path=request.path)
        if request.path in _OPEN[:3]:
            return web.Response(text="ok")
        if request.path not in _OPEN:
            self._authenticate(request)
        if request.path.startswith("/openapi"):
            raise errors.cannot("OpenAPI", "it has no schemas")
        if (place := self.place(request.path)) is not None:
            return await self._serve(request, place)
        async with self._scaffold:
            answer: web.StreamResponse = await self._scaffold(request)
        return answer

    def place(self, path: str) -> Place | None:
        """Return what a path points at; None when it is about no resource. Raises ApiError for an unknown one."""
        match path.strip("/").split("/"):
            case ["api", version, *rest] if rest:
                return self._place(path, "", version, rest)
            case ["apis", group, version, *rest] if rest:
                return self._place(path, group, version, rest)
        return None

    async def _control(self, request: web.BaseRequest) -> web.StreamResponse:
        """Script faults from another process: ``POST /stand-in/fail`` (a Rule's fields), ``/stand-in/drop-watches``."""
        match request.method, request.path:
            case "POST", "/stand-in/fail":
                self.faults.rules.append(faults.Rule(**await request.json()))
            case "POST", "/stand-in/drop-watches":
                self.drop_watches()
            case _:
                raise errors.not_found("path", request.path)
        return web.json_response({"rules": [asdict(rule) for rule in self.faults.rules]})

    def _authenticate(self, request: web.BaseRequest) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if self._token is not None and (scheme.lower() != "bearer" or token.strip() != self._token):
            raise errors.ApiError(401, "Unauthorized", "Unauthorized")

    def _place(self, path: str, group: str, version: str, rest: list[str]) -> Place:
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
            _, namespace, *rest = rest
        plural, name, subresource, *_ = (*rest, "", "", "")
        for review in (_ACCESS_REVIEW, _TOKEN_REVIEW):
            if (group, version, plural) == (review.group, review.version, review.plural):
                return Place(review)
        resource = self._registry.find(group=group, version=version, plural=plural)
        if resource is None:
            if plural.endswith("reviews"):
                raise errors.cannot(plural, "there are no users and no RBAC here")
            raise errors.ApiError(404, "NotFound", "the server could not find the requested resource")
        if (plural, subresource) in (_TOKEN, _BINDING):
            return Place(resource, namespace=namespace, name=name, subresource=subresource)
        if subresource not in _SUBRESOURCES or (subresource and not resource.has_status):
            raise errors.cannot(f"the subresource {plural}/{subresource}", f"{path} needs more than a store")
        return Place(resource, namespace=namespace, name=name, subresource=subresource)

    async def _serve(self, request: web.BaseRequest, place: Place) -> web.StreamResponse:
        query = request.query
        if "dryRun" in query:
            raise errors.cannot("dry runs", "admission and validation are not done")
        if request.method == "GET" and query.get("watch") in ("1", "true"):
            return await self._watch(request, place)
        body = await _body(request)
        match request.method, bool(place.name):
            case "GET", True:
                return _json(self.operations.get(place))
            case "GET", False:
                limit, token = int(query.get("limit") or 0), query.get("continue", "")
                listing = self.operations.list(place, _selector(place, query), limit=limit, token=token)
                return _json(metadata.listing(listing) if metadata.wanted(request.headers) else listing)
            case "POST", _ if not place.name or place.subresource in ("token", "binding"):
                return _json(self._post(place, body), status=http.HTTPStatus.CREATED)
            case "PUT", True:
                return _json(self.operations.update(place, body))
            case "PATCH", True:
                return _json(self.operations.patch(place, body, content_type=request.content_type))
            case "DELETE", True:
                return _json(self.operations.delete(place, _options(query, body)))
            case "DELETE", False:
                return _json(self.operations.delete_all(place, _options(query, body), _selector(place, query)))
        raise errors.ApiError(
            405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
        )

    def _post(self, place: Place, body: Object) -> Object:
        if place.resource is _ACCESS_REVIEW:
            return {**body, "status": {"allowed": True}}
        if place.resource is _TOKEN_REVIEW:
            return self.operations.tokens.review(body)
        if place.subresource == "binding":
            self.operations.bind(place, body)
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        if place.name:
            return self.operations.request_token(place, body)
        return self.operations.create(place, body)

    async def _watch(self, request: web.BaseRequest, place: Place) -> web.StreamResponse:
        query = request.query
        if "sendInitialEvents" in query:
            why = "sendInitialEvents: Forbidden: not allowed unless the WatchList feature gate is enabled"
            raise errors.invalid("ListOptions.meta.k8s.io", "", why)
        lines = watches.stream(
            self.store,
            watches.Selection(place, _selector(place, query)),
            since=query.get("resourceVersion", ""),
            bookmarks=query.get("allowWatchBookmarks") in ("1", "true"),
            timeout=float(query.get("timeoutSeconds") or 1800),
            bookmark_period=self._bookmark_period,
            shown=metadata.of if metadata.wanted(request.headers) else lambda obj: obj,
        )
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        connection = request.transport
        assert connection is not None
        self._streams.add(connection)
        try:
            await response.prepare(request)
            async for line in lines:
                await response.write(line)
        except ConnectionError:
            pass  # the watcher left
        finally:
            self._streams.discard(connection)
        return response


def _selector(place: Place, query: Mapping[str, str]) -> selectors.Predicate:
    by_label = selectors.labels(query.get("labelSelector", ""))
    by_field = selectors.fields(query.get("fieldSelector", ""), resource=place.resource.plural)
    return lambda obj: by_label(obj) and by_field(obj)


def _options(query: Mapping[str, str], body: Object) -> Object:
    """Return the DeleteOptions; they may come in the body or, some of them, in the query."""
    options = dict(body)
    if "gracePeriodSeconds" in query:
        options["gracePeriodSeconds"] = int(query["gracePeriodSeconds"])
    if "propagationPolicy" in query:
        options["propagationPolicy"] = query["propagationPolicy"]
    return options


async def _body(request: web.BaseRequest) -> Any:
    text = await request.text()
    if not text:
        return {}
    try:
        return json.loads(text)
    except ValueError as error:
        raise errors.bad_request(f"the body is not JSON: {error}") from error


def _json(obj: Object, *, status: int = http.HTTPStatus.OK) -> web.Response:
    return web.json_response(obj, status=int(status))
