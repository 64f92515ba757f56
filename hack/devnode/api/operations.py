"""The verbs of the API on the store: rules applied, preconditions held, nothing awaited, so each one is atomic."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hack.devnode.api import deletion, errors, paging, patching, pods, rules, selectors, tokens
from hack.devnode.api.registry import CRDS, Registry, Resource
from hack.devnode.api.store import Key, Store, key_of

Object = dict[str, Any]

_SEEDED = ("default", "kube-node-lease", "kube-public", "kube-system")


@dataclass(frozen=True, slots=True)
class Place:
    """What a path points at. ``name`` "" is the collection, ``namespace`` "" is all of them."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class Operations:
    """Create, get, list, update, patch, delete. All raise ``errors.ApiError``. ``clock`` gives Unix seconds."""

    def __init__(self, *, store: Store, registry: Registry, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self.pages = paging.Pages()
        self.tokens = tokens.Tokens(pod=self._pod, clock=clock)
        namespaces = registry.find(group="", version="v1", plural="namespaces")
        assert namespaces is not None
        self._namespaces = namespaces
        for name in _SEEDED:
            self.create(Place(namespaces), {"metadata": {"name": name}})
        store.compact()  # a real server has a past as well, and does not remember its first versions

    def create(self, place: Place, obj: Object) -> Object:
        """Create an object in a collection."""
        resource = place.resource
        namespace = place.namespace or str((obj.get("metadata") or {}).get("namespace", ""))
        if resource.namespaced:
            self._need_namespace(namespace)
        created = rules.for_create(resource, obj, namespace=namespace, uid=str(uuid.uuid4()), now=self._clock())
        key = key_of(resource, namespace=namespace, name=created["metadata"]["name"])
        if self._store.get(key) is not None:
            raise errors.exists(resource.qualified, key.name)
        if (resource.group, resource.plural) == CRDS:
            self._registry.define(created)
        return self._store.put(key, created)

    def bind(self, place: Place, body: Object) -> Object:
        """Bind a pod to a node, as a scheduler asks."""
        whole = Place(place.resource, namespace=place.namespace, name=place.name)
        bound = pods.bound(self.get(whole), body, now=self._clock())
        return self._store.put(key_of(place.resource, namespace=place.namespace, name=place.name), bound)

    def request_token(self, place: Place, body: Object) -> Object:
        """Give out a token of a service account."""
        return self.tokens.request(self.get(place), body)

    def get(self, place: Place) -> Object:
        """Return one object; its status subresource is the whole object too."""
        found = self._store.get(key_of(place.resource, namespace=place.namespace, name=place.name))
        if found is None:
            raise errors.not_found(place.resource.qualified, place.name)
        return found

    def list(self, place: Place, matches: selectors.Predicate, *, limit: int = 0, token: str = "") -> Object:
        """Return a collection as a list object, or a page of it. Items of built-in kinds carry no kind, as in Go."""
        if token:
            return self.pages.next(token, limit=limit)
        resource = place.resource
        items = [obj for obj in self._store.select(resource, namespace=place.namespace) if matches(obj)]
        if not resource.custom:
            items = [{k: v for k, v in obj.items() if k not in ("kind", "apiVersion")} for obj in items]
        listing = {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": str(self._store.version)},
            "items": items,
        }
        return self.pages.first(listing, limit=limit)

    def update(self, place: Place, new: Object) -> Object:
        """Replace an object, or only its status."""
        old = self.get(place)
        changed = rules.for_update(place.resource, old=old, new=new, subresource=place.subresource)
        if changed is old:
            return old
        key = key_of(place.resource, namespace=place.namespace, name=place.name)
        written = self._store.put(key, changed)
        return self._store.remove(key) if deletion.is_over(written) else written

    def patch(self, place: Place, patch: Any, *, content_type: str) -> Object:
        """Patch an object, or only its status."""
        apply = patching.BY_CONTENT_TYPE.get(content_type)
        if apply is None:
            raise errors.cannot(f"patches of type {content_type}", "field management needs typed schemas")
        if place.resource.custom and apply is patching.strategic:
            message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(
                kind for kind in patching.BY_CONTENT_TYPE if "strategic" not in kind
            )
            raise errors.ApiError(415, "UnsupportedMediaType", message)
        old = self.get(place)
        new = apply(old, patch)
        if new["metadata"].get("uid") != old["metadata"]["uid"]:  # for a patch no precondition, but a broken rule
            why = f'metadata.uid: Invalid value: "{new["metadata"].get("uid")}": field is immutable'
            raise errors.invalid(place.resource.kind, place.name, why)
        return self.update(place, new)

    def delete(self, place: Place, options: Object) -> Object:
        """Delete an object: announce it while there is grace or a finalizer, else remove it. Returns what is left."""
        old = self.get(place)
        deletion.check(place.resource, old, options)
        key = key_of(place.resource, namespace=place.namespace, name=place.name)
        left = deletion.announced(place.resource, old, options, now=self._clock())
        removable = deletion.is_over(left)
        if left is not old and (place.resource.plural == "pods" or not removable):
            left = self._store.put(key, left)  # of pods, even a deletion without grace is announced
        return self._store.remove(key) if removable else left

    def delete_all(self, place: Place, options: Object, matches: selectors.Predicate) -> Object:
        """Delete what a list with the same selectors would return, and return that list."""
        listing = self.list(place, matches)
        for item in listing["items"]:
            metadata = item["metadata"]
            one = Place(place.resource, namespace=metadata.get("namespace", ""), name=metadata["name"])
            self.delete(one, options)
        return listing

    def _pod(self, namespace: str, name: str) -> Object | None:
        return self._store.get(Key("", "pods", namespace, name))

    def _need_namespace(self, namespace: str) -> None:
        if self._store.get(key_of(self._namespaces, namespace="", name=namespace)) is None:
            raise errors.not_found("namespaces", namespace)
