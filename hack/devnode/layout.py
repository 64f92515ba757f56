"""Define the paths of every file and socket, and the network names, of one dev node.

All of it lies under one root, so that several nodes run side by side and a crashed one can be found and removed. The
root is short and under /run because a unix socket's path must fit into 108 bytes (unix(7), ``sun_path``) and containerd
appends names of its own below its state directory.
"""

import pathlib
import re
import zlib
from dataclasses import dataclass

BASE = pathlib.Path("/run/kubemend-dev")
"""The directory of all dev nodes of this machine."""

SERVICES = "10.128.0.0/10"
"""The Services' addresses of all nodes; pods have none of them."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_MAX_SOCKET_PATH = 107  # sun_path holds 108 bytes, the last one is NUL
_MAX_LINK_NAME = 15  # IFNAMSIZ is 16 with its NUL
_SUBNETS = 40 * 256  # 10.200.0.0 to 10.239.255.0: many, so that two nodes' names rarely choose the same one


class LayoutError(ValueError):
    """The name or the root cannot be used. The message is one line: the value, and the hint."""


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Hold the paths of one dev node.

    ``index`` (0..10239) selects its pod network; nodes that run at the same time need different ones for their pods to
    be reachable. Raises LayoutError when the name is not a DNS label of at most 32 characters, the index is out of
    range, or the root is so long that a socket would not fit.
    """

    root: pathlib.Path
    name: str
    index: int = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise LayoutError(f"dev node name {self.name!r}: use at most 32 of a-z, 0-9 and '-', no '-' at either end")
        if not 0 <= self.index < _SUBNETS:
            raise LayoutError(f"dev node {self.name}: network index {self.index} is not within 0..{_SUBNETS - 1}")
        if not self.root.is_absolute():
            raise LayoutError(f"dev node {self.name}: root {self.root} is not an absolute path")
        longest = max((len(str(path)) for path in self.sockets), default=0)
        if longest > _MAX_SOCKET_PATH:
            raise LayoutError(
                f"dev node {self.name}: socket paths under {self.root} have {longest} bytes, the kernel allows "
                f"{_MAX_SOCKET_PATH}; use a shorter root such as {BASE / self.name}"
            )

    @classmethod
    def named(cls, name: str, *, index: int | None = None) -> "NodeLayout":
        """Return the layout of a node of that name in its usual place, with a pod network chosen by its name."""
        chosen = zlib.crc32(name.encode()) % _SUBNETS if index is None else index
        return cls(root=BASE / name, name=name, index=chosen)

    def neighbour(self, number: int) -> "NodeLayout":
        """Return the layout of the ``number``-th node of this node's cluster, in its usual place."""
        return NodeLayout(
            root=self.root.with_name(f"{self.root.name}-{number}"),
            name=f"{self.name}-{number}",
            index=(self.index + number) % _SUBNETS,
        )

    # --- containerd

    @property
    def containerd_root(self) -> pathlib.Path:
        """containerd's persistent data: content, snapshots, metadata."""
        return self.root / "containerd"

    @property
    def containerd_state(self) -> pathlib.Path:
        """containerd's runtime data: bundles, shims, network namespaces."""
        return self.root / "state"

    @property
    def containerd_socket(self) -> pathlib.Path:
        """The socket of CRI and containerd's own API."""
        return self.root / "containerd.sock"

    @property
    def notify_socket(self) -> pathlib.Path:
        """The socket on which containerd reports that it is ready (sd_notify(3))."""
        return self.root / "notify.sock"

    @property
    def nri_socket(self) -> pathlib.Path:
        """The socket of containerd's Node Resource Interface, if that is on."""
        return self.root / "nri.sock"

    @property
    def containerd_config(self) -> pathlib.Path:
        """containerd's config.toml."""
        return self.root / "containerd.toml"

    @property
    def containerd_log(self) -> pathlib.Path:
        """The output of containerd and its shims."""
        return self.root / "containerd.log"

    @property
    def images_archive(self) -> pathlib.Path:
        """The OCI archive that is imported into containerd."""
        return self.root / "images.tar"

    @property
    def cdi_dir(self) -> pathlib.Path:
        """CDI specs of devices that containers may ask for by name."""
        return self.root / "cdi"

    # --- network and cgroups

    @property
    def cni_conf_dir(self) -> pathlib.Path:
        """The one network configuration."""
        return self.root / "cni" / "net.d"

    @property
    def cni_data_dir(self) -> pathlib.Path:
        """Addresses in use."""
        return self.root / "cni" / "addresses"

    @property
    def network_name(self) -> str:
        """The name of the pod network in CNI's own records."""
        return f"kubemend-{self.name}"

    @property
    def bridge(self) -> str:
        """The bridge's link name: a digest of root and name, because a link name has at most 15 characters."""
        name = f"kmbr{zlib.crc32(f'{self.root}/{self.name}'.encode()):08x}"
        assert len(name) <= _MAX_LINK_NAME
        return name

    @property
    def _network(self) -> str:
        return f"10.{200 + self.index // 256}.{self.index % 256}"

    @property
    def subnet(self) -> str:
        """The pods' addresses. Private, and without a route or masquerading: nothing leaves this machine."""
        return f"{self._network}.0/24"

    @property
    def gateway(self) -> str:
        """This machine's address on the bridge; probes and hooks come from it."""
        return f"{self._network}.1"

    @property
    def _service_network(self) -> str:
        return f"10.{128 + self.index // 256}.{self.index % 256}"

    @property
    def services(self) -> str:
        """The addresses of Services where this node has its cluster's API server (``addons``)."""
        return f"{self._service_network}.0/24"

    @property
    def api_service(self) -> str:
        """The address of the Service ``kubernetes``: the first one of the range, as kube-apiserver chooses it."""
        return f"{self._service_network}.1"

    @property
    def dns_service(self) -> str:
        """The address of the cluster's DNS."""
        return f"{self._service_network}.10"

    @property
    def cgroup_parent(self) -> str:
        """The cgroup of all pods, by kubelet's name for it (``devnode.cgroups``)."""
        return f"/kubemend-dev-{self.name}"

    # --- kubelet's side

    @property
    def pod_logs(self) -> pathlib.Path:
        """Stands for /var/log/pods."""
        return self.root / "log" / "pods"

    @property
    def container_log_links(self) -> pathlib.Path:
        """Stands for /var/log/containers, which log shippers read."""
        return self.root / "log" / "containers"

    @property
    def kubelet_root(self) -> pathlib.Path:
        """Stands for /var/lib/kubelet."""
        return self.root / "kubelet"

    @property
    def pod_resources_socket(self) -> pathlib.Path:
        """kubelet's pod-resources API."""
        return self.kubelet_root / "pod-resources" / "kubelet.sock"

    def pod_dir(self, uid: str) -> pathlib.Path:
        """Return kubelet's directory of a pod."""
        return self.kubelet_root / "pods" / uid

    def pod_log_dir(self, *, namespace: str, name: str, uid: str) -> pathlib.Path:
        """Return a pod's log directory (kubelet pkg/kubelet/kuberuntime/helpers.go ``BuildPodLogsDirectory``)."""
        return self.pod_logs / f"{namespace}_{name}_{uid}"

    # --- the agent's environment

    @property
    def kernel_log(self) -> pathlib.Path:
        """Stands for /dev/kmsg. Faults are written here, never to the machine's own kernel log."""
        return self.root / "kmsg"

    @property
    def nvml_dir(self) -> pathlib.Path:
        """The directory of the fake libnvidia-ml.so.1 and of its control files."""
        return self.root / "nvml"

    @property
    def agent_state(self) -> pathlib.Path:
        """The agent's journal and verdicts."""
        return self.root / "agent"

    @property
    def kubeconfig(self) -> pathlib.Path:
        """The kubeconfig of the node's Kubernetes API."""
        return self.root / "kubeconfig"

    # --- processes

    def pid_file(self, part: str) -> pathlib.Path:
        """Return the pid file of a part (``containerd``, ``kubelet``, ``api``, ``agent``)."""
        return self.root / "pids" / part

    def log_file(self, part: str) -> pathlib.Path:
        """Return the log file of a part."""
        return self.root / f"{part}.log"

    @property
    def sockets(self) -> tuple[pathlib.Path, ...]:
        """All unix sockets of the node; containerd itself appends ``.ttrpc`` to its own."""
        return (
            self.containerd_socket.with_name(f"{self.containerd_socket.name}.ttrpc"),
            self.notify_socket,
            self.pod_resources_socket,
        )
