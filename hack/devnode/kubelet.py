"""Run a real kubelet inside one dev node: own directories, own cgroup, own mounts.

It gets a mount namespace of its own in which /var/lib and /var/log are empty (it insists on /var/lib/kubelet and
/var/log/containers), and in which the kernel parameters that it would set on this machine appear to be set already. The
node's root is a shared mount (``containerd``), so that the volumes that kubelet mounts reach the containers.

GPUs come from a device plugin in a process of its own (``hack.devnode.deviceplugin``).
"""

import asyncio
import os
import resource
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hack.devnode import cgroups, kubelet_ready, kubernetes, layout, loopback, patience, processes
from hack.devnode.part import Part
from kubemend.agent.clients.podresources.client import PodResourcesClient

# Values that it requires (pkg/kubelet/cm ``setupKernelTunables``).
_SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
_STOP_SECONDS = 15.0


class Kubelet(Part):
    """Run kubelet as a process. ``config`` is merged over its KubeletConfiguration, ``flags`` follow its own flags.

    ``stop`` leaves the containers running, and ``start`` after it adopts them.
    """

    def __init__(
        self,
        where: layout.NodeLayout,
        *,
        kubeconfig: Path,
        node_name: str,
        devices: Sequence[str] = (),
        real_gpus: bool = False,
        config: Mapping[str, Any] | None = None,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``real_gpus``: the devices are this machine's. ``environment`` is added to this program's."""
        self.node_name = node_name
        self.pod_resources_socket = where.pod_resources_socket
        self._where = where
        self._kubeconfig = kubeconfig
        self._devices = tuple(devices)
        self._real_gpus = real_gpus
        self._config = dict(config or {})
        self._flags = tuple(flags)
        self._environment = {**os.environ, **(environment or {})}
        self._port = loopback.free_port()
        self._child: processes.Child | None = None
        self._plugin: processes.Child | None = None

    async def devices_of(self, pod: str) -> frozenset[str]:
        """Return the UUIDs that the containers of a pod of that name hold."""
        socket = str(self.pod_resources_socket)
        async with PodResourcesClient(socket, report=lambda _: None, deadline=patience.SECONDS) as pod_resources:
            held = await pod_resources.list()
        assert held.known, f"kubelet's pod-resources socket {socket} does not answer"
        return frozenset(uuid for item in held.items if item.pod_name == pod for uuid in item.devices)

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await asyncio.to_thread(cgroups.remove, self._where.cgroup_parent)

    async def start(self) -> None:
        """Start it and wait until the node is Ready. Raises processes.ProcessError."""
        await asyncio.to_thread(self._prepare)
        log = self._where.log_file("kubelet")
        self._child = processes.Child.start(
            ["unshare", "--mount", "--propagation", "unchanged", "sh", "-euc", self._script()],
            name="kubelet",
            log=log,
            pid_file=self._where.pid_file("kubelet"),
            environment=self._environment,
        )
        try:
            await self._wait_until_ready(self._child, devices=0)
            if self._devices:  # not sooner: a kubelet that starts removes the sockets of plugins
                self._plugin = self._start_plugin()
                await self._wait_until_ready(self._child, devices=len(self._devices))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End kubelet; its containers continue to run."""
        await self._end(grace=_STOP_SECONDS)

    async def kill(self) -> None:
        """End it by SIGKILL."""
        await self._end(grace=0)

    async def _wait_until_ready(self, child: processes.Child, *, devices: int) -> None:
        await kubelet_ready.wait_until_ready(
            child,
            node_name=self.node_name,
            kubeconfig=self._kubeconfig,
            pod_resources=self.pod_resources_socket,
            log=self._where.log_file("kubelet"),
            devices=devices,
        )

    async def _end(self, *, grace: float) -> None:
        for child in (self._plugin, self._child):
            if child is not None:
                await child.stop(grace=grace)
        self._plugin = self._child = None

    def _start_plugin(self) -> processes.Child:
        directory = self.device_plugins
        flags = [f"--directory={directory}", *(f"--device={item}" for item in self._devices)]
        flags += ["--real"] if self._real_gpus else []
        return processes.Child.start(
            [sys.executable, "-m", "hack.devnode.deviceplugin", *flags],
            name="device plugin",
            log=self._where.log_file("deviceplugin"),
            pid_file=self._where.pid_file("deviceplugin"),
            environment=processes.source_environment(),
        )

    @property
    def device_plugins(self) -> Path:
        """Return the directory in which device plugins register."""
        return self._var_lib / "device-plugins"

    def configuration(self) -> dict[str, Any]:
        """Return its KubeletConfiguration: kubelet's defaults, except for the entries here, each with its reason."""
        where = self._where
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            # The node's own runtime, directories and cgroup, so that several nodes run side by side on one machine.
            "containerRuntimeEndpoint": f"unix://{where.containerd_socket}",
            "cgroupRoot": where.cgroup_parent,
            "podLogsDir": str(where.pod_logs),
            "volumePluginDir": str(where.kubelet_root / "volume-plugins"),  # the default is below /usr
            "address": where.gateway,
            "port": self._port,  # 10250 belongs to one kubelet of the machine
            "healthzPort": 0,  # so does 10248
            # By default neither systemd nor cgroup v2 is needed; and no cgroup outside of the node's is touched.
            "cgroupDriver": cgroups.driver(),
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            # Machines of developers have swap, kernel settings, firewalls and full disks of their own.
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "evictionHard": dict.fromkeys(_EVICTION_SIGNALS, "0%"),
            "localStorageCapacityIsolation": False,
            "imageGCHighThresholdPercent": 100,  # images are imported by hand and cannot be pulled again
            "imageGCLowThresholdPercent": 99,
            "resolvConf": "",  # nothing that pods could resolve
            # The dev cluster's API server has no client certificate for kubelets.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            # The plugin's GPUs become allocatable with the next status of the node: 10 s would prolong each start.
            "nodeStatusUpdateFrequency": "2s",
            "nodeStatusReportFrequency": "5m",  # kubelet's default, unless the other one is set
            # Lower and higher values need CAP_SYS_RESOURCE, which containers and sandboxes lack.
            "oomScoreAdj": 0,
            "maxOpenFiles": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            **self._config,
        }

    @property
    def _config_file(self) -> Path:
        return self._where.root / "kubelet.yaml"

    def _prepare(self) -> None:
        where = self._where
        for path in (where.kubelet_root, where.pod_logs, where.container_log_links, self._var_lib):
            path.mkdir(parents=True, exist_ok=True)
        self._config_file.write_text(yaml.safe_dump(self.configuration(), sort_keys=False))
        for key, value in _SYSCTLS.items():
            path = self._sysctls / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
        cgroups.make(where.cgroup_parent)

    @property
    def _sysctls(self) -> Path:
        return self._where.root / "sysctls"

    @property
    def _var_lib(self) -> Path:
        """Return the directory that it sees as /var/lib/kubelet. Device plugins register there with any root
        directory.
        """
        return self._where.root / "var-lib-kubelet"

    def _script(self) -> str:
        """Return a shell script that arranges the mounts and then becomes kubelet.

        Only mounts that get something mounted onto them become private. The node's root stays shared with the machine's
        own mount namespace.
        """
        binds = {"/var/lib/kubelet": self._var_lib, "/var/log/containers": self._where.container_log_links}
        command = [
            str(kubernetes.program("kubelet")),
            f"--config={self._config_file}",
            f"--kubeconfig={self._kubeconfig}",
            f"--root-dir={self._where.kubelet_root}",
            f"--cert-dir={self._where.kubelet_root / 'pki'}",
            f"--hostname-override={self.node_name}",
            f"--node-ip={self._where.gateway}",  # it refuses a loopback address
            *self._flags,
        ]
        return "\n".join(
            [
                *(
                    f'mount --make-private "$(findmnt --noheadings --output TARGET --target {place})"'
                    for place in ("/proc/sys", *sorted({str(Path(target).parent) for target in binds}))
                ),
                *(f"mount --bind {shlex.quote(str(self._sysctls / key))} /proc/sys/{key}" for key in _SYSCTLS),
                *(f"mount -t tmpfs tmpfs {Path(target).parent}" for target in binds),
                *(
                    f"mkdir {target} && mount --bind {shlex.quote(str(path))} {target}"
                    for target, path in binds.items()
                ),
                f"exec {shlex.join(command)}",
            ]
        )


_EVICTION_SIGNALS = (
    "memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree",
)  # fmt: skip
