"""Generate containerd's configuration file and the pod network's, for a dev node.

Differences from containerd's defaults: every path lies under the node's root, the sandboxes' image is imported, and
plugins that the node does not use are off, which makes containerd start faster and touch less of the machine.
"""

import json
import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from hack.devnode import cgroups, images, layout, packages

_UNUSED_PLUGINS = (
    "io.containerd.differ.v1.erofs",
    "io.containerd.internal.v1.tracing",
    "io.containerd.monitor.container.v1.restart",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.erofs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
)

CONTAINERD: Final = "containerd"
CRIO: Final = "cri-o"
PROGRAMS: Final = (CONTAINERD, CRIO)
RUNC: Final = "runc"
CRUN: Final = "crun"
OCI_RUNTIMES: Final = (RUNC, CRUN)


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Select the kind of runtime: ``program`` is ``containerd`` or ``cri-o``, ``oci_runtime`` is ``runc`` or ``crun``.

    ``$KUBEMEND_DEV_RUNTIME`` and ``$KUBEMEND_DEV_OCI_RUNTIME`` are those of nodes that do not ask for one: scenarios
    run on each. The rest is about containerd.

    - ``snapshotter`` makes the containers' roots; None: ``overlayfs`` where the machine can mount overlays, else
      ``native``
    - ``snapshots`` is its directory; None: below the node's root
    - ``runc`` is the program of the OCI runtime; None: Debian's
    - ``nri`` turns on the Node Resource Interface, which containerd 2.x has on by default
    - ``handlers`` are further names under which RuntimeClasses can ask for the same OCI runtime
    """

    program: str = field(default_factory=lambda: os.environ.get("KUBEMEND_DEV_RUNTIME", CONTAINERD))
    oci_runtime: str = field(default_factory=lambda: os.environ.get("KUBEMEND_DEV_OCI_RUNTIME", RUNC))
    snapshotter: str | None = None
    snapshots: pathlib.Path | None = None
    runc: pathlib.Path | None = None
    nri: bool = False
    handlers: tuple[str, ...] = ()

    @property
    def crun(self) -> packages.Crun | None:
        """crun, fetched if necessary; None if containers are run by runc. Raises packages.PackagesError."""
        if self.oci_runtime not in OCI_RUNTIMES:
            raise packages.PackagesError(f"no OCI runtime {self.oci_runtime!r}; use {' or '.join(OCI_RUNTIMES)}")
        return packages.ensure_crun() if self.oci_runtime == CRUN else None

    def search_path(self, binaries: packages.Binaries) -> str:
        """Return ``PATH`` for the runtime, by which it and the agent find the OCI runtime."""
        crun = self.crun
        return binaries.search_path if crun is None else f"{crun.program.parent}:{binaries.search_path}"


def containerd_config(
    node: layout.NodeLayout, *, binaries: packages.Binaries, snapshotter: str, options: RuntimeOptions
) -> str:
    """Return config.toml: version 3 for containerd 2.x, version 2 for 1.x. ``snapshotter`` is the one to use.

    The handler of pods that ask for none is called ``runc``, whichever OCI runtime it is. Raises
    packages.PackagesError.
    """
    crun = options.crun
    program = options.runc or (binaries.runc if crun is None else crun.lenient)
    runtimes = dict.fromkeys(("runc", *options.handlers), program)
    version = 3 if binaries.version >= (2,) else 2
    common = _common(node, version=version, snapshotter=snapshotter, snapshots=options.snapshots)
    if version == 2:
        return common + _cri_v2(node, binaries=binaries, snapshotter=snapshotter, runtimes=runtimes)
    return common + _cri_v3(node, binaries=binaries, snapshotter=snapshotter, runtimes=runtimes, nri=options.nri)


def network_config(node: layout.NodeLayout) -> str:
    """Return the CNI configuration: a bridge that this machine shares with its pods.

    The bridge already has its address (``network.ensure_bridge``): as a CNI "gateway", the plugin would turn on IP
    forwarding for the whole machine.
    """
    ipam = {
        "type": "host-local",
        "dataDir": str(node.cni_data_dir),
        "ranges": [[{"subnet": node.subnet, "gateway": node.gateway}]],
        "routes": [{"dst": layout.SERVICES, "gw": node.gateway}],  # ``addons``
    }
    bridge = {"type": "bridge", "bridge": node.bridge, "isGateway": False, "ipMasq": False, "ipam": ipam}
    return json.dumps({"cniVersion": "1.0.0", "name": node.network_name, "plugins": [bridge]}, indent=2)


def _common(node: layout.NodeLayout, *, version: int, snapshotter: str, snapshots: pathlib.Path | None) -> str:
    place = f"[plugins.'io.containerd.snapshotter.v1.{snapshotter}']\n  root_path = {_quoted(snapshots)}\n"
    unused = [each for each in _UNUSED_PLUGINS if each != f"io.containerd.snapshotter.v1.{snapshotter}"]
    return f"""\
version = {version}
root = {_quoted(node.containerd_root)}
state = {_quoted(node.containerd_state)}
disabled_plugins = {json.dumps(unused)}

[grpc]
  address = {_quoted(node.containerd_socket)}

[plugins.'io.containerd.internal.v1.opt']
  path = {_quoted(node.containerd_root / "opt")}

{place if snapshots is not None else ""}"""


def _cri_v3(
    node: layout.NodeLayout,
    *,
    binaries: packages.Binaries,
    snapshotter: str,
    runtimes: Mapping[str, pathlib.Path],
    nri: bool,
) -> str:
    runtime = "plugins.'io.containerd.cri.v1.runtime'"
    return f"""
[plugins.'io.containerd.nri.v1.nri']
  disable = {json.dumps(not nri)}
  socket_path = {_quoted(node.nri_socket)}
  plugin_path = {_quoted(node.root / "nri" / "plugins")}
  plugin_config_path = {_quoted(node.root / "nri" / "conf.d")}

[plugins.'io.containerd.cri.v1.images']
  snapshotter = {_quoted(snapshotter)}
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = {_quoted(images.PAUSE)}

[{runtime}]
  cdi_spec_dirs = [{_quoted(node.cdi_dir)}]
{_cri_runtime(node, table=runtime, runtimes=runtimes)}
  [{runtime}.cni]
    bin_dirs = [{_quoted(binaries.cni_dir)}]
    conf_dir = {_quoted(node.cni_conf_dir)}
    use_internal_loopback = true
"""


def _cri_v2(
    node: layout.NodeLayout, *, binaries: packages.Binaries, snapshotter: str, runtimes: Mapping[str, pathlib.Path]
) -> str:
    cri = "plugins.'io.containerd.grpc.v1.cri'"
    return f"""
[{cri}]
  sandbox_image = {_quoted(images.PAUSE)}
{_cri_runtime(node, table=cri, runtimes=runtimes)}
  [{cri}.containerd]
    snapshotter = {_quoted(snapshotter)}
  [{cri}.cni]
    bin_dir = {_quoted(binaries.cni_dir)}
    conf_dir = {_quoted(node.cni_conf_dir)}
"""


def _cri_runtime(node: layout.NodeLayout, *, table: str, runtimes: Mapping[str, pathlib.Path]) -> str:
    # restrict_oom_score_adj: without CAP_SYS_RESOURCE (a container, a sandbox) a process may not lower an
    # oom_score_adj, and runc fails; with it the setting changes nothing that matters here.
    handlers = "".join(
        f"""\
  [{table}.containerd.runtimes.{name}]
    runtime_type = 'io.containerd.runc.v2'
    [{table}.containerd.runtimes.{name}.options]
      BinaryName = {_quoted(program)}
      Root = {_quoted(node.containerd_state / "runc")}
      SystemdCgroup = {json.dumps(cgroups.driver() == cgroups.SYSTEMD)}
"""
        for name, program in runtimes.items()
    )
    return f"""\
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
{handlers}"""


def _quoted(value: object) -> str:
    return json.dumps(str(value))  # TOML's basic strings escape as JSON's do
