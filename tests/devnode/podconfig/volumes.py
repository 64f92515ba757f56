"""Manage a pod's directories on the node, its volumes, and the files that kubelet mounts into every container.

The layout is kubelet's: ``<root>/pods/<uid>/{volumes,containers,etc-hosts}``. Volumes: emptyDir and hostPath.
"""

import asyncio
import secrets
import shutil
from pathlib import Path

from tests.devnode.podconfig import config
from tests.devnode.podconfig.spec import Container, Json, Pod


class PodDirectories:
    """Manage the directories of all pods under kubelet's root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def prepare(self, pod: Pod, *, pod_ip: str) -> dict[str, Path]:
        """Create the pod's directories and volumes; return each volume's path on the host.

        Raises ValueError for a volume of another kind.
        """
        await asyncio.to_thread(self._base(pod).mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(_write_hosts, self._base(pod) / "etc-hosts", pod, pod_ip)
        return {
            volume["name"]: await asyncio.to_thread(self._volume, pod, volume)
            for volume in pod.spec.get("volumes") or ()
        }

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
        """Remove everything of a deleted pod."""
        await asyncio.to_thread(shutil.rmtree, self._base(pod), ignore_errors=True)

    def _base(self, pod: Pod) -> Path:
        return self._root / "pods" / pod.uid

    def _termination_log(self, container: Container, pod: Pod) -> Path:
        """Create a new file for each start: its name is random because the container's id is not known yet."""
        path = self._base(pod) / "containers" / container.name / secrets.token_hex(4)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(0o666)
        return path

    def _volume(self, pod: Pod, volume: Json) -> Path:
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        name: str = volume["name"]
        if "emptyDir" not in volume:
            raise ValueError(f"volume {name}: only emptyDir and hostPath exist without a kubelet")
        path = self._base(pod) / "volumes" / "kubernetes.io~empty-dir" / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
        return path


def _write_hosts(path: Path, pod: Pod, pod_ip: str) -> None:
    lines = ["# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost"]
    if pod_ip:
        lines.append(f"{pod_ip}\t{pod.spec.get('hostname') or pod.name}")
    path.write_text("\n".join(lines) + "\n")
