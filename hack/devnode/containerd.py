"""Run a private containerd: started, broken on purpose, and removed without a trace. CRI-O is run alike (``crio``)."""

import asyncio
import contextlib
import pathlib
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from typing import ClassVar

import grpc.aio
import structlog

from hack.devnode import claims, images, layout, leftovers, network, packages, processes, runtime_config, sockets
from hack.devnode.part import Part
from kubemend.common import grpcio
from kubemend.common.pb.runtime.v1 import api_pb2, api_pb2_grpc

log = structlog.get_logger(__name__)

_PID_FILE = "containerd"  # of either runtime
_LOG_LINES = 15
_START_SECONDS = 60.0
_STOP_SECONDS = 5.0
_CALL_SECONDS = 30.0
_POLL_SECONDS = 0.01
_NOT_INITIALIZED = "server is not initialized yet"  # pkg/cri/server/instrumented_service.go


class ContainerdError(RuntimeError):
    """The runtime did not start. The message ends with the last lines of its log."""


class Containerd(Part):
    """Run containerd and its CRI, under the root of one dev node.

    ``async with Containerd(node, binaries):`` runs it for the length of the block. Leaving it removes all pods,
    processes, mounts, links and files of the node's runtime: the whole root directory. One program at a time may run a
    node (``claims.NodeInUseError``); the remains of a crashed one are removed first.
    """

    program: ClassVar[str] = "containerd"

    def __init__(
        self,
        node: layout.NodeLayout,
        binaries: packages.Binaries,
        *,
        options: runtime_config.RuntimeOptions | None = None,
    ) -> None:
        self.node = node
        self.binaries = binaries
        self._options = options or runtime_config.RuntimeOptions()
        self._claim = claims.Claim(node)
        self._child: processes.Child | None = None

    @property
    def search_path(self) -> str:
        """``PATH`` of the daemon."""
        return self._options.search_path(self.binaries)

    @property
    def pid(self) -> int:
        """Return the daemon's process id. Raises ContainerdError while it does not run."""
        if self._child is None:
            raise ContainerdError(f"{self.program} of dev node {self.node.name} is not running; start it first")
        return self._child.pid

    async def start(self) -> None:
        """Set up the node's root and start containerd; it answers CRI and has the images when this returns.

        Raises ContainerdError, claims.NodeInUseError, network.NetworkError or images.ImagesError.
        """
        self._claim.take()
        try:
            await leftovers.reap(self.node)
            await asyncio.to_thread(self._prepare)
            await self._launch()
            await asyncio.to_thread(self._import_images)
            await self._images_known()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Remove the pods, end containerd and remove everything it had. Stopping twice is allowed."""
        try:
            if self._child is not None and self._child.returncode is None:
                self.resume()
                await self._remove_pods()
                await self._child.stop(grace=_STOP_SECONDS)
            self._child = None
            await leftovers.reap(self.node)
        finally:
            self._claim.give_back()

    async def restart(self) -> None:
        """End containerd by SIGTERM and start it again. Containers run on, as in an upgrade on a real node."""
        if self._child is not None:
            await self._child.stop(grace=_STOP_SECONDS)
        await self._launch()

    async def kill(self) -> None:
        """SIGKILL containerd and leave it dead. Containers and their shims run on."""
        if self._child is not None:
            self._child.signal(signal.SIGKILL)
            await self._child.wait(timeout=_CALL_SECONDS)

    def pause(self) -> None:
        """SIGSTOP containerd: its socket still accepts connections, but they are not answered."""
        if self._child is not None:
            self._child.pause()

    def resume(self) -> None:
        """SIGCONT containerd."""
        if self._child is not None:
            self._child.signal(signal.SIGCONT)

    @contextlib.asynccontextmanager
    async def runtime(self) -> "AsyncIterator[api_pb2_grpc.RuntimeServiceAsyncStub]":
        """Open a channel to CRI's RuntimeService for the length of the block."""
        async with grpcio.unix_channel(str(self.node.containerd_socket)) as channel:
            yield api_pb2_grpc.RuntimeServiceStub(channel)

    def _prepare(self) -> None:
        node = self.node
        _share_mounts(node.root)
        for folder in (node.cni_conf_dir, node.cdi_dir, node.pod_logs, node.container_log_links, node.kubelet_root):
            folder.mkdir(parents=True, exist_ok=True)
        node.containerd_config.write_text(self._config(), encoding="utf-8")
        (node.cni_conf_dir / "10-pods.conflist").write_text(runtime_config.network_config(node), encoding="utf-8")
        network.ensure_bridge(node)

    def _config(self) -> str:
        return runtime_config.containerd_config(
            self.node,
            binaries=self.binaries,
            snapshotter=self._options.snapshotter or _snapshotter(self.node.root),
            options=self._options,
        )

    def _command(self) -> tuple[str, ...]:
        return (str(self.binaries.containerd), "--config", str(self.node.containerd_config))

    async def _launch(self) -> None:
        """Start the daemon and wait for its ready notification (sd_notify(3)), then for CRI's answer."""
        with sockets.notify_socket(self.node.notify_socket) as notified:
            self._child = processes.Child.start(
                self._command(),
                name=self.program,
                log=self.node.containerd_log,
                pid_file=self.node.pid_file(_PID_FILE),
                environment={"PATH": self.search_path, "NOTIFY_SOCKET": str(self.node.notify_socket)},
            )
            ready = asyncio.create_task(sockets.until_ready(notified), name="containerd-ready")
            ended = asyncio.create_task(self._child.wait(timeout=_START_SECONDS), name="containerd-ended")
            try:
                await asyncio.wait((ready, ended), timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    raise ContainerdError(self._failure())
            finally:
                for task in (ready, ended):
                    task.cancel()
                await asyncio.gather(ready, ended, return_exceptions=True)
        await self._answers_cri()

    async def _answers_cri(self) -> None:
        """Wait for CRI's answer. containerd 1.6 is ready before its CRI service is. Raises ContainerdError."""
        async with self.runtime() as cri:
            give_up_at = time.monotonic() + _START_SECONDS
            while True:
                try:
                    await cri.Version(api_pb2.VersionRequest(), timeout=_CALL_SECONDS, wait_for_ready=True)
                except grpc.aio.AioRpcError as error:
                    if error.details() != _NOT_INITIALIZED or time.monotonic() > give_up_at:
                        raise ContainerdError(self._with_log(f"does not answer CRI ({error.details()})")) from error
                    await asyncio.sleep(_POLL_SECONDS)
                else:
                    return

    def _failure(self) -> str:
        status = self._child.returncode if self._child is not None else None
        what = f"ended with status {status}" if status is not None else f"is not ready after {_START_SECONDS:g} s"
        return self._with_log(what)

    def _with_log(self, what: str) -> str:
        lines = self.node.containerd_log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join((f"{self.program} {what}; the end of {self.node.containerd_log}:", *lines[-_LOG_LINES:]))

    def _import_images(self) -> None:
        images.build(self.binaries, self.node.images_archive)
        images.load(self.binaries, archive=self.node.images_archive, socket=self.node.containerd_socket)

    async def _images_known(self) -> None:
        """Wait until CRI lists the imported images: containerd announces an import by an internal event only."""
        async with grpcio.unix_channel(str(self.node.containerd_socket)) as channel, asyncio.timeout(_START_SECONDS):
            service: api_pb2_grpc.ImageServiceAsyncStub = api_pb2_grpc.ImageServiceStub(channel)
            for name in (images.BUSYBOX, images.PAUSE):
                request = api_pb2.ImageStatusRequest(image=api_pb2.ImageSpec(image=name))
                while not (await service.ImageStatus(request, timeout=_CALL_SECONDS)).HasField("image"):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_SECONDS)

    async def _remove_pods(self) -> None:
        """Remove the sandboxes of all pods in the runtime's own way; the rest is left to ``leftovers``."""
        async with self.runtime() as cri:
            try:
                listed = await cri.ListPodSandbox(api_pb2.ListPodSandboxRequest(), timeout=_CALL_SECONDS)
                async with asyncio.TaskGroup() as group:
                    for sandbox in listed.items:
                        group.create_task(_remove_pod(cri, sandbox.id), name=f"remove-{sandbox.id}")
            except* grpc.aio.AioRpcError as errors:
                log.warning("devnode.pods_not_removed", node=self.node.name, errors=[str(e) for e in errors.exceptions])


async def _remove_pod(cri: "api_pb2_grpc.RuntimeServiceAsyncStub", sandbox_id: str) -> None:
    await cri.StopPodSandbox(api_pb2.StopPodSandboxRequest(pod_sandbox_id=sandbox_id), timeout=_CALL_SECONDS)
    await cri.RemovePodSandbox(api_pb2.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id), timeout=_CALL_SECONDS)


def _share_mounts(root: pathlib.Path) -> None:
    """Make the node's root a mount that is shared with other mount namespaces, as / is where systemd runs.

    By that, kubelet's mounts in its own namespace (Secrets, tokens, emptyDir in memory) reach containerd, and
    containerd's mounts reach containers that ask for ``HostToContainer`` (mount_namespaces(7)).
    """
    root.mkdir(parents=True, exist_ok=True)
    for arguments in (("--bind", str(root), str(root)), ("--make-shared", str(root))):
        subprocess.run(("mount", *arguments), timeout=_CALL_SECONDS, check=True)


def _snapshotter(root: pathlib.Path) -> str:
    """Return ``overlayfs`` where an overlay can be mounted under the root, else ``native`` (copies, slower)."""
    with tempfile.TemporaryDirectory(dir=root) as name:
        folders = {part: pathlib.Path(name, part) for part in ("lower", "upper", "work", "merged")}
        for folder in folders.values():
            folder.mkdir()
        options = f"lowerdir={folders['lower']},upperdir={folders['upper']},workdir={folders['work']}"
        mount = ("mount", "-t", "overlay", "overlay", "-o", options, str(folders["merged"]))
        if subprocess.run(mount, capture_output=True, timeout=_CALL_SECONDS, check=False).returncode != 0:
            log.info("devnode.no_overlayfs", root=str(root), using="native")
            return "native"
        subprocess.run(("umount", str(folders["merged"])), timeout=_CALL_SECONDS, check=True)
        return "overlayfs"
