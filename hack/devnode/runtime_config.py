"""Generate containerd's configuration file and the pod network's, for a dev node.

Differences from containerd's defaults: every path lies under the node's root, the sandboxes' image is imported, and
plugins that the node does not use are off, which makes containerd start faster and touch less of the machine.
"""

import json

from hack.devnode import images, layout, packages

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


def containerd_config(node: layout.NodeLayout, *, binaries: packages.Binaries, snapshotter: str) -> str:
    """Return config.toml: version 3 for containerd 2.x, version 2 for 1.x."""
    cri = _cri_v3 if binaries.version >= (2,) else _cri_v2
    return _common(node, version=3 if binaries.version >= (2,) else 2) + cri(
        node, binaries=binaries, snapshotter=snapshotter
    )


def network_config(node: layout.NodeLayout) -> str:
    """Return the CNI configuration: a bridge that this machine shares with its pods.

    The bridge already has its address (``network.ensure_bridge``): as a CNI "gateway", the plugin would turn on IP
    forwarding for the whole machine.
    """
    ipam = {
        "type": "host-local",
        "dataDir": str(node.cni_data_dir),
        "ranges": [[{"subnet": node.subnet, "gateway": node.gateway}]],
        "routes": [{"dst": "10.214.0.0/16", "gw": node.gateway}],  # the addresses of Services (``addons``)
    }
    bridge = {"type": "bridge", "bridge": node.bridge, "isGateway": False, "ipMasq": False, "ipam": ipam}
    return json.dumps({"cniVersion": "1.0.0", "name": node.network_name, "plugins": [bridge]}, indent=2)


def _common(node: layout.NodeLayout, *, version: int) -> str:
    return f"""\
version = {version}
root = {_quoted(node.containerd_root)}
state = {_quoted(node.containerd_state)}
disabled_plugins = {json.dumps(_UNUSED_PLUGINS)}

[grpc]
  address = {_quoted(node.containerd_socket)}

[plugins.'io.containerd.internal.v1.opt']
  path = {_quoted(node.containerd_root / "opt")}
"""


def _cri_v3(node: layout.NodeLayout, *, binaries: packages.Binaries, snapshotter: str) -> str:
    runtime = "plugins.'io.containerd.cri.v1.runtime'"
    return f"""
[plugins.'io.containerd.nri.v1.nri']
  disable = true

[plugins.'io.containerd.cri.v1.images']
  snapshotter = {_quoted(snapshotter)}
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = {_quoted(images.PAUSE)}

[{runtime}]
  cdi_spec_dirs = [{_quoted(node.cdi_dir)}]
{_cri_runtime(node, table=runtime, binaries=binaries)}
  [{runtime}.cni]
    bin_dirs = [{_quoted(binaries.cni_dir)}]
    conf_dir = {_quoted(node.cni_conf_dir)}
    use_internal_loopback = true
"""


def _cri_v2(node: layout.NodeLayout, *, binaries: packages.Binaries, snapshotter: str) -> str:
    cri = "plugins.'io.containerd.grpc.v1.cri'"
    return f"""
[{cri}]
  sandbox_image = {_quoted(images.PAUSE)}
{_cri_runtime(node, table=cri, binaries=binaries)}
  [{cri}.containerd]
    snapshotter = {_quoted(snapshotter)}
  [{cri}.cni]
    bin_dir = {_quoted(binaries.cni_dir)}
    conf_dir = {_quoted(node.cni_conf_dir)}
"""


def _cri_runtime(node: layout.NodeLayout, *, table: str, binaries: packages.Binaries) -> str:
    # restrict_oom_score_adj: without CAP_SYS_RESOURCE (a container, a sandbox) a process may not lower an
    # oom_score_adj, and runc fails; with it the setting changes nothing that matters here.
    return f"""\
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [{table}.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [{table}.containerd.runtimes.runc.options]
      BinaryName = {_quoted(binaries.runc)}
      Root = {_quoted(node.containerd_state / "runc")}
      SystemdCgroup = false
"""


def _quoted(value: object) -> str:
    return json.dumps(str(value))  # TOML's basic strings escape as JSON's do
