"""Give a JobSet's pods a volume for compile caches that outlive restarts, as the component ``caches`` does. Pure.

That component is a policy, for all pods that opted in, and needs Kubernetes 1.36. A template of kubemend's own JobSets
asks for the same by ``kubemend.io/cache: On``. Where both apply, the second one finds nothing to add. A test compares
both.
"""

from collections.abc import Mapping
from typing import Any, Final

from kubemend.common import cache_volume
from kubemend.controller.gangs import members
from kubemend.controller.jobset.spec import quantities
from kubemend.controller.jobset.spec.model import Json

CACHE: Final = members.PREFIX + "cache"
CACHE_SIZE: Final = members.PREFIX + "cache-size"
_ON: Final = "On"


def with_cache(pod_spec: dict[str, Any], annotations: Mapping[str, str]) -> dict[str, Any]:
    """Return the spec of pods with these annotations, with the cache if they ask for it.

    What the template sets itself stays: a volume of that name, a mount at that path, and variables.
    """
    if annotations.get(members.RESTART) != members.IN_PLACE or annotations.get(CACHE) != _ON:
        return pod_spec
    volumes = pod_spec.get("volumes") or ()
    added = [] if _names(volumes, "name", cache_volume.NAME) else [_volume(annotations.get(CACHE_SIZE))]
    containers = [_mounting(each) for each in pod_spec.get("containers") or ()]
    return {**pod_spec, "volumes": [*volumes, *added], "containers": containers}


def _volume(size: str | None) -> dict[str, Any]:
    """Return the volume; a size that is none is no limit, because a Job with it would be refused."""
    amount = quantities.parse(size)
    return {"name": cache_volume.NAME, "emptyDir": {} if amount is None or amount < 0 else {"sizeLimit": size}}


def _mounting(container: Json) -> dict[str, Any]:
    mounts, env = container.get("volumeMounts") or (), container.get("env") or ()
    mount = {"name": cache_volume.NAME, "mountPath": cache_volume.PATH}
    added = [] if _names(mounts, "mountPath", cache_volume.PATH) else [mount]
    variables = [
        {"name": name, "value": f"{cache_volume.PATH}/{container.get('name')}/{directory}"}
        for name, directory in cache_volume.DIRECTORIES.items()
        if not _names(env, "name", name)
    ]
    return {**container, "volumeMounts": [*mounts, *added], "env": [*env, *variables]}


def _names(entries: Any, key: str, name: str) -> bool:
    return any(each.get(key) == name for each in entries)
