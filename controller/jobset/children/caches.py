"""Give a JobSet's pods a volume for compile caches that outlive restarts, as the component ``caches`` does. Pure.

That component is a policy, for all pods that opted in, and needs Kubernetes 1.36. A template of kubemend's own JobSets
asks for the same by ``kubemend.io/cache: On``. Where both apply, the second one finds nothing to add. A test compares
both.
"""

from collections.abc import Mapping
from typing import Any, Final

from kubemend.controller.gangs import members
from kubemend.controller.jobset.spec import quantities
from kubemend.controller.jobset.spec.model import Json

VOLUME: Final = "kubemend-cache"
INSIDE: Final = "/var/cache/kubemend"
"""Where it is mounted. Each container has a directory of its own name in it."""
DIRECTORIES: Final = {
    "CUDA_CACHE_PATH": "cuda",
    "JAX_COMPILATION_CACHE_DIR": "jax",
    "PYTHONPYCACHEPREFIX": "python",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "TRITON_CACHE_DIR": "triton",
    "XDG_CACHE_HOME": "xdg",
}
"""The variables, and the directories below the container's that they name."""
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
    added = [] if _names(volumes, "name", VOLUME) else [_volume(annotations.get(CACHE_SIZE))]
    containers = [_mounting(each) for each in pod_spec.get("containers") or ()]
    return {**pod_spec, "volumes": [*volumes, *added], "containers": containers}


def _volume(size: str | None) -> dict[str, Any]:
    """Return the volume; a size that is none is no limit, because a Job with it would be refused."""
    amount = quantities.parse(size)
    return {"name": VOLUME, "emptyDir": {} if amount is None or amount < 0 else {"sizeLimit": size}}


def _mounting(container: Json) -> dict[str, Any]:
    mounts, env = container.get("volumeMounts") or (), container.get("env") or ()
    mount = [] if _names(mounts, "mountPath", INSIDE) else [{"name": VOLUME, "mountPath": INSIDE}]
    variables = [
        {"name": name, "value": f"{INSIDE}/{container.get('name')}/{directory}"}
        for name, directory in DIRECTORIES.items()
        if not _names(env, "name", name)
    ]
    return {**container, "volumeMounts": [*mounts, *mount], "env": [*env, *variables]}


def _names(entries: Any, key: str, name: str) -> bool:
    return any(each.get(key) == name for each in entries)
