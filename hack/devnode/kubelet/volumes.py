"""A pod's directories on the node, its volumes, and the files that kubelet mounts into every container.

Laid out as kubelet does it: ``<root>/pods/<uid>/{volumes,containers,etc-hosts}``. Volumes: emptyDir (also with medium
Memory, on plain disk), hostPath, configMap. Anything else is refused with its name.
"""

import asyncio
import secrets
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from hack.devnode.kubelet import config
from hack.devnode.kubelet.environment import UnsupportedFieldError
from hack.devnode.kubelet.spec import Container, Json, Pod

FetchConfigMap = Callable[[str, str], Awaitable[Json]]
"""Namespace and name in, the ConfigMap object out."""


class PodDirectories:
    """The directories of all pods under kubelet's root."""

    def __init__(self, *, root: Path, fetch_config_map: FetchConfigMap) -> None:
        self._root = root
        self._fetch = fetch_config_map

    async def prepare(self, pod: Pod, *, pod_ip: str) -> dict[str, Path]:
        """Make the pod's directories and volumes; return each volume's path on the host."""
        await asyncio.to_thread(self._base(pod).mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(_write_hosts, self._base(pod) / "etc-hosts", pod, pod_ip)
        return {volume["name"]: await self._volume(pod, volume) for volume in pod.spec.get("volumes") or ()}

    def knows(self, uid: str) -> bool:
        """Whether a pod of this kubelet is not yet removed, be it that the API server has forgotten it."""
        return (self._root / "pods" / uid).exists()

    def mounts(self, container: Container, *, pod: Pod, volumes: dict[str, Path]) -> list[config.Mount]:
        """Return a container's mounts: its volumes, ``/etc/hosts``, and a fresh termination log."""
        made = [
            config.Mount(
                host=volumes[item["name"]] / item.get("subPath", ""),
                container=item["mountPath"],
                read_only=bool(item.get("readOnly")),
            )
            for item in container.raw.get("volumeMounts") or ()
        ]
        if not pod.host_network and all(mount.container != "/etc/hosts" for mount in made):
            made.append(config.Mount(host=self._base(pod) / "etc-hosts", container="/etc/hosts"))
        inside = container.raw.get("terminationMessagePath", config.DEFAULT_MESSAGE_PATH)
        return [*made, config.Mount(host=self._termination_log(container, pod), container=inside)]

    async def remove(self, pod: Pod) -> None:
        """Remove everything of a pod that is gone."""
        await asyncio.to_thread(shutil.rmtree, self._base(pod), ignore_errors=True)

    def _base(self, pod: Pod) -> Path:
        return self._root / "pods" / pod.uid

    def _termination_log(self, container: Container, pod: Pod) -> Path:
        """A new file per start: the name is random because the container's id is not known yet."""
        path = self._base(pod) / "containers" / container.name / secrets.token_hex(4)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(0o666)
        return path

    async def _volume(self, pod: Pod, volume: Json) -> Path:
        if "hostPath" in volume:
            return await asyncio.to_thread(_host_path, volume["hostPath"])
        name: str = volume["name"]
        plugin = "configmap" if "configMap" in volume else "empty-dir"
        path = self._base(pod) / "volumes" / f"kubernetes.io~{plugin}" / name
        if "configMap" in volume:
            source = await self._fetch(pod.namespace, volume["configMap"]["name"])
            await asyncio.to_thread(_write_keys, path, source.get("data") or {})
        elif "emptyDir" in volume:
            await asyncio.to_thread(_empty_dir, path, (pod.spec.get("securityContext") or {}).get("fsGroup"))
        else:
            kind = next(key for key in volume if key != "name")
            raise UnsupportedFieldError(f"volume {name}: {kind} is not supported by this kubelet stand-in")
        return path


def _host_path(source: Json) -> Path:
    path = Path(source["path"])
    kind = source.get("type", "")
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch()
    elif kind and not path.exists():
        raise UnsupportedFieldError(f"hostPath {path} of type {kind} does not exist")
    return path


def _empty_dir(path: Path, group: int | None) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o777)
    if group is not None:
        shutil.chown(path, group=group)


def _write_keys(path: Path, data: dict[str, str]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for key, text in data.items():
        (path / key).write_text(text)


def _write_hosts(path: Path, pod: Pod, pod_ip: str) -> None:
    lines = ["# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost"]
    if pod_ip:
        lines.append(f"{pod_ip}\t{pod.spec.get('hostname') or pod.name}")
    path.write_text("\n".join(lines) + "\n")
