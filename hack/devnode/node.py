"""One whole dev node: containerd, an API server, a kubelet, a fake NVML and a stand-in for the kernel log.

Real parts where ``kubernetes.assets`` has them, stand-ins where it has not. Everything lies under one root, and
leaving the node's context stops all parts in order and removes what they made.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hack import kmsg
from hack.devnode import apiprocess, guest, layout, loopback, packages, processes, realkube, realkubelet
from hack.devnode.containerd import Containerd
from hack.devnode.kubelet import process
from hack.fakenvml import control as nvml_control

_AGENT_STOP_SECONDS = 30.0
_HOST_PACKAGES = ("gcc", "libc6-dev", "iproute2", "libseccomp2", "openssl", "util-linux")


@dataclass(frozen=True, slots=True)
class Options:
    """What kind of node. ``real_*`` None means: real when ``kubernetes.assets`` has it.

    ``kubelet_flags`` are further flags of the stand-in (``{"backoff-first": "1"}``), ``kubelet_config`` is merged over
    the real one's KubeletConfiguration.
    """

    gpus: int = 8
    real_api: bool | None = None
    real_kubelet: bool | None = None
    kubelet_flags: Mapping[str, str] = field(default_factory=dict)
    kubelet_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def wants_real_kubelet(self) -> bool:
        """Whether kubelet will be a real one. Raises processes.ProcessError when that is asked for in vain."""
        return _wants_real(self.real_kubelet, realkubelet.missing() or realkube.missing())


class DevNode:
    """A dev node that runs as long as the ``async with`` block. Its Kubernetes name is that of its layout.

    ``beside`` is a running node whose API server this one uses, and whose containerd where its layout says so.
    """

    def __init__(
        self, where: layout.NodeLayout, *, options: Options | None = None, beside: "DevNode | None" = None
    ) -> None:
        self.layout = where
        self.options = options or Options()
        self.name = where.name
        self._beside = beside
        self.containerd: Containerd
        if beside is not None and where.host is not None:
            assert where.host == beside.layout, "a node shares the runtime of the one that it stands beside"
            self.containerd = beside.containerd
        else:
            self.containerd = Containerd(where, packages.ensure_packages())
        self._api: realkube.RealKube | apiprocess.ApiProcess | None = None
        self._stack = contextlib.AsyncExitStack()
        self._kubelet: process.KubeletProcess | None = None
        self._nvml: nvml_control.FakeNvml | None = None

    @classmethod
    def named(cls, name: str, *, options: Options | None = None) -> Self:
        """Return the node of that name in its usual place."""
        return cls(layout.NodeLayout.named(name), options=options)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start all parts; the node is Ready when this returns.

        Raises the errors of the parts: packages.PackagesError, claims.NodeInUseError, containerd.ContainerdError,
        processes.ProcessError and so on; nothing is left running then.
        """
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._runtime())
            await asyncio.to_thread(self._fake_hardware)
            if self._nvml is not None:
                stack.callback(self._nvml.close)
            self._api = await self._join_api(stack)
            self._kubelet = await stack.enter_async_context(self._make_kubelet())
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        """Stop all parts, the newest first, and remove everything."""
        await self._stack.aclose()

    @property
    def kubelet(self) -> process.KubeletProcess:
        """The kubelet, real or not."""
        assert self._kubelet is not None, "the node has not been started"
        return self._kubelet

    @property
    def api(self) -> "realkube.RealKube | apiprocess.ApiProcess":
        """The API server, real or not."""
        assert self._api is not None, "the node has not been started"
        return self._api

    @property
    def kinds(self) -> dict[str, str]:
        """Which parts are real."""
        return {
            "api": "real kube-apiserver" if isinstance(self._api, realkube.RealKube) else "stand-in",
            "kubelet": "real" if isinstance(self._kubelet, realkubelet.RealKubelet) else "stand-in",
        }

    @property
    def nvml(self) -> nvml_control.FakeNvml:
        """Breaks and mends the GPUs."""
        assert self._nvml is not None, "the node has not been started"
        return self._nvml

    @property
    def kernel_log(self) -> kmsg.KmsgWriter:
        """Writes to the stand-in of the kernel log."""
        return kmsg.KmsgWriter(self.layout.kernel_log)

    @property
    def kubeconfig(self) -> Path:
        """How to reach the API as administrator."""
        return self.layout.kubeconfig

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """The GPUs that NVML shows and kubelet gives out."""
        return tuple(nvml_control.gpu_uuid(number) for number in range(self.options.gpus))

    def agent_flags(self, *, metrics_address: str) -> dict[str, str]:
        """Return the agent's flags for this node, without their dashes."""
        where = self.layout
        return {
            "node-name": self.name,
            "kubeconfig": str(where.kubeconfig),
            "cri-endpoint": str(where.containerd_socket),
            "pod-resources-socket": str(self.kubelet.pod_resources_socket),
            "kernel-log": str(where.kernel_log),
            "state-dir": str(where.agent_state),
            "pod-log-symlinks": str(where.container_log_links),
            "metrics-address": metrics_address,
        }

    def agent_environment(self) -> dict[str, str]:
        """Return an environment in which the agent loads the fake NVML."""
        return {**os.environ, **self.nvml.env()}

    @contextlib.asynccontextmanager
    async def agent(self, *extra: str, metrics_address: str | None = None) -> AsyncIterator["Agent"]:
        """Run ``kubemend agent`` as a process of its own; ``extra`` are further arguments. SIGTERM ends it."""
        address = metrics_address or f"127.0.0.1:{loopback.free_port()}"
        flags = self.agent_flags(metrics_address=address)
        log = self.layout.log_file("agent")
        child = processes.Child.start(
            [*agent_command(), *(f"--{key}={value}" for key, value in flags.items()), *extra],
            name="kubemend agent",
            log=log,
            pid_file=self.layout.pid_file("agent"),
            environment=self.agent_environment(),
        )
        try:
            yield Agent(child=child, metrics_address=address, log=log)
        finally:
            await child.stop(grace=_AGENT_STOP_SECONDS)

    def _fake_hardware(self) -> None:
        where = self.layout
        for path in (where.nvml_dir, where.agent_state, where.pod_logs, where.container_log_links):
            path.mkdir(parents=True, exist_ok=True)
        library = where.nvml_dir if self._beside is None else self._beside.layout.nvml_dir
        if self._beside is None:
            nvml_control.build(library)
        self._nvml = nvml_control.FakeNvml(where.nvml_dir / "state", library, gpus=self.options.gpus)
        kmsg.KmsgWriter(where.kernel_log)

    def _runtime(self) -> Containerd | guest.Guest:
        return self.containerd if self.layout.host is None else guest.Guest(self.layout, self.containerd)

    async def _join_api(self, stack: contextlib.AsyncExitStack) -> "realkube.RealKube | apiprocess.ApiProcess":
        """Start the API server, or have the other node's kubeconfig lie where this node's would."""
        where = self.layout
        if self._beside is not None:
            where.kubeconfig.symlink_to(self._beside.kubeconfig)
            return self._beside.api
        if _wants_real(self.options.real_api, realkube.missing()):
            real = realkube.RealKube(where.root / "kube", kubeconfig=where.kubeconfig)
            return await stack.enter_async_context(real)
        stand_in = apiprocess.ApiProcess(
            kubeconfig=where.kubeconfig, log=where.log_file("api"), pid_file=where.pid_file("api")
        )
        return await stack.enter_async_context(stand_in)

    def _make_kubelet(self) -> "realkubelet.RealKubelet | process.StandIn":
        where, name, options = self.layout, self.name, self.options
        if options.wants_real_kubelet:
            return realkubelet.RealKubelet(
                where,
                kubeconfig=where.kubeconfig,
                node_name=name,
                devices=self.gpu_uuids,
                config=options.kubelet_config,
            )
        return process.StandIn(
            where,
            kubeconfig=where.kubeconfig,
            node_name=name,
            devices=self.gpu_uuids,
            options=options.kubelet_flags,
        )


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent process. ``metrics_address`` is where /metrics, /healthz and /readyz are."""

    child: processes.Child
    metrics_address: str
    log: Path


def setup() -> None:
    """Fetch what a dev node needs that is not on this machine yet. Raises packages.PackagesError."""
    packages.ensure_host_packages(_HOST_PACKAGES)
    packages.ensure_packages()


def agent_command() -> Sequence[str]:
    """Return how the agent is run from a checkout."""
    return (sys.executable, "-m", "agent.cli", "agent")


def _wants_real(asked: bool | None, missing: str) -> bool:  # noqa: FBT001 - a three-valued wish
    if asked and missing:
        raise processes.ProcessError(f"a real part was asked for, but {missing}")
    return not missing if asked is None else asked
