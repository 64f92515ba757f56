"""Run one whole dev node: containerd, etcd and kube-apiserver, kubelet, a device plugin, a fake NVML and kernel log.

Only the GPUs and the kernel log are simulated, and neither where ``Options`` ask for the machine's own. Everything lies
under one root, and leaving the node's context stops all parts in order and removes their remains.
"""

import asyncio
import contextlib
import functools
import hashlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from hack import kmsg
from hack.devnode import (
    accounts,
    apiserver,
    crio,
    kubelet,
    kubernetes,
    layout,
    leftovers,
    loopback,
    packages,
    processes,
    realgpus,
    runtime_config,
)
from hack.devnode.containerd import Containerd
from hack.devnode.part import Part
from hack.fakenvml import control as nvml_control

REAL: Final = "real"

_AGENT_STOP_SECONDS = 30.0
_LOG_LINES = 40  # of the agent's log in an error
_HOST_PACKAGES = ("gcc", "libc6-dev", "libseccomp2", "openssl", "util-linux")


@dataclass(frozen=True, slots=True)
class Options:
    """Select the kind of node.

    ``gpus`` is the number of simulated GPUs. ``REAL``: the node has this machine's GPUs, NVML and kernel log.

    ``kubelet_config`` is merged over kubelet's KubeletConfiguration, ``kubelet_flags`` are flags for what it has no
    field for, ``kubelet_environment`` is added to its environment. ``service_accounts`` has the API server give pods
    their service accounts and tokens, as it does by default; that needs a controller manager, which creates the
    accounts. ``runtime`` is the kind of container runtime.
    """

    gpus: int | Literal["real"] = 8
    kubelet_config: Mapping[str, Any] = field(default_factory=dict)
    kubelet_flags: Sequence[str] = ()
    kubelet_environment: Mapping[str, str] = field(default_factory=dict)
    service_accounts: bool = False
    runtime: runtime_config.RuntimeOptions = field(default_factory=runtime_config.RuntimeOptions)


class DevNode(Part):
    """Run a dev node for the length of the ``async with`` block. Its Kubernetes name is that of its layout.

    ``api`` is an API server to use, which must run when the node starts; None: the node has one of its own.
    """

    def __init__(
        self, where: layout.NodeLayout, *, options: Options | None = None, api: apiserver.KubeApiServer | None = None
    ) -> None:
        self.layout = where
        self.options = options or Options()
        self.name = where.name
        self.kubeconfig = where.kubeconfig
        """The administrator's."""
        self.gpu_uuids = _gpu_uuids(self.options)
        """The GPUs that NVML shows and kubelet allocates."""
        runtime = crio.Crio if self.options.runtime.program == runtime_config.CRIO else Containerd
        self.containerd = runtime(where, packages.ensure_packages(), options=self.options.runtime)
        self.api = api or apiserver.KubeApiServer(
            where.root / "kube", kubeconfig=where.kubeconfig, service_accounts=self.options.service_accounts
        )
        self.kubelet = kubelet.Kubelet(
            where,
            kubeconfig=where.kubeconfig,
            node_name=where.name,
            devices=self.gpu_uuids,
            real_gpus=self.has_real_gpus,
            config=self.options.kubelet_config,
            flags=self.options.kubelet_flags,
            environment=self.options.kubelet_environment,
        )
        self._has_own_api = api is None
        self._stack = contextlib.AsyncExitStack()
        self._nvml: nvml_control.FakeNvml | None = None

    @classmethod
    def named(cls, name: str, *, options: Options | None = None) -> Self:
        """Return the node of that name in its usual place."""
        return cls(layout.NodeLayout.named(name), options=options)

    async def start(self) -> None:
        """Start all parts; the node is Ready when this returns.

        Raises the errors of the parts: packages.PackagesError (also where Kubernetes has not been built),
        claims.NodeInUseError, containerd.ContainerdError, processes.ProcessError and so on; nothing is left running
        then.
        """
        if reason := kubernetes.missing("etcd", "kube-apiserver", "kubelet"):
            raise packages.PackagesError(reason)
        processes.end_on_sigterm()
        if self._has_own_api:
            await leftovers.reap_abandoned()
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.containerd)
            await asyncio.to_thread(self._make_directories)
            if not self.has_real_gpus:
                self._nvml = await asyncio.to_thread(self._fake_hardware)
                stack.callback(self._nvml.close)
            if self._has_own_api:
                await stack.enter_async_context(self.api)
            else:
                self.layout.kubeconfig.symlink_to(self.api.kubeconfig)
            await stack.enter_async_context(self.kubelet)
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        """Stop all parts, the newest first, and remove everything."""
        await self._stack.aclose()

    @property
    def kinds(self) -> dict[str, str]:
        """Return the kinds of its parts, for reports of measurements."""
        return {"api": "real kube-apiserver", "kubelet": "real", "runtime": self.options.runtime.program}

    @property
    def nvml(self) -> nvml_control.FakeNvml:
        """Return the control of the fake GPUs."""
        assert self._nvml is not None, "the node has not been started, or its GPUs are real"
        return self._nvml

    @property
    def kernel_log(self) -> kmsg.KmsgWriter:
        """Return the writer of the fake kernel log."""
        assert not self.has_real_gpus, "the kernel log is the machine's own"
        return kmsg.KmsgWriter(self.layout.kernel_log)

    @property
    def has_real_gpus(self) -> bool:
        """Return whether the node has this machine's GPUs."""
        return self.options.gpus == REAL

    async def first_gpu(self, pod: str) -> int:
        """Return the number, on this node, of the first GPU that a pod of that name holds."""
        return min(self.gpu_uuids.index(uuid) for uuid in await self.kubelet.devices_of(pod))

    def agent_flags(self, *, metrics_address: str) -> dict[str, str]:
        """Return the agent's flags for this node, without their dashes."""
        where = self.layout
        kernel_log = {} if self.has_real_gpus else {"kernel-log": str(where.kernel_log)}
        no_proof = {} if self.has_real_gpus else {"proof-timeout": "0s"}  # a scenario may bring a fake CUDA driver
        return {
            "node-name": self.name,
            "kubeconfig": str(where.kubeconfig),
            "cri-endpoint": str(where.containerd_socket),
            "pod-resources-socket": str(self.kubelet.pod_resources_socket),
            **kernel_log,
            "state-dir": str(where.agent_state),
            "pod-log-symlinks": str(where.container_log_links),
            "metrics-address": metrics_address,
            **no_proof,
        }

    def agent_environment(self) -> dict[str, str]:
        """Return an environment in which the agent loads the node's NVML."""
        return {**os.environ, **({} if self.has_real_gpus else self.nvml.env())}

    @contextlib.asynccontextmanager
    async def agent(self, *extra: str) -> AsyncIterator["Agent"]:
        """Run ``kubemend agent`` as a process of its own; ``extra`` are further arguments. SIGTERM ends it.

        It is its own account in the API, unless ``extra`` names another kubeconfig.
        """
        address = f"127.0.0.1:{loopback.free_port()}"
        flags = self.agent_flags(metrics_address=address)
        if not any(each.startswith("--kubeconfig=") for each in extra):
            flags["kubeconfig"] = str(await self._agents_kubeconfig())
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
        except Exception as error:
            error.add_note(f"The agent's last log lines:\n{_end_of(log)}")
            raise
        finally:
            await child.stop(grace=_AGENT_STOP_SECONDS)

    async def _agents_kubeconfig(self) -> Path:
        path = self.layout.root / "agent.kubeconfig"
        if not path.exists():
            await accounts.agent_kubeconfig(path, node=self.name, administrator=self.kubeconfig)
        return path

    def _make_directories(self) -> None:
        where = self.layout
        for path in (where.agent_state, where.pod_logs, where.container_log_links):
            path.mkdir(parents=True, exist_ok=True)

    def _fake_hardware(self) -> nvml_control.FakeNvml:
        where = self.layout
        where.nvml_dir.mkdir(exist_ok=True)
        shutil.copy(_nvml_library(), where.nvml_dir)
        kmsg.KmsgWriter(where.kernel_log)
        return nvml_control.FakeNvml(where.nvml_dir / "state", where.nvml_dir, gpus=len(self.gpu_uuids))


@dataclass(frozen=True, slots=True)
class Agent:
    """Describe an agent process. ``metrics_address`` is that of /metrics, /healthz and /readyz."""

    child: processes.Child
    metrics_address: str
    log: Path


def setup() -> None:
    """Fetch the programs that a dev node needs and this machine lacks. Raises packages.PackagesError."""
    packages.ensure_host_packages(_HOST_PACKAGES)
    packages.ensure_packages()


def _end_of(log: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
    return ""


def agent_command() -> Sequence[str]:
    """Return the command that runs the agent from a checkout."""
    return (sys.executable, "-m", "kubemend.agent.cli", "agent")


def _gpu_uuids(options: Options) -> tuple[str, ...]:
    """Return the UUIDs of a node's GPUs. Raises realgpus.NoGpusError."""
    if options.gpus == REAL:
        return tuple(gpu.uuid for gpu in realgpus.find())
    return tuple(nvml_control.gpu_uuid(number) for number in range(options.gpus))


@functools.cache
def _nvml_library() -> Path:
    """Return the fake NVML, compiled once for its source: a compiler run for each node would slow every start."""
    source = Path(nvml_control.__file__).with_name("fakenvml.c").read_bytes()
    directory = packages.DEFAULT_CACHE.parent / "fakenvml" / hashlib.sha256(source).hexdigest()[:8]
    library = directory / nvml_control.LIBRARY
    return library if library.exists() else nvml_control.build(directory)
