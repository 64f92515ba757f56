"""Publish a running dev node's data: a file with its environment, and the state of its parts."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hack.devnode import layout, processes
from hack.devnode.node import DevNode
from kubemend.common.kube import client, errors, paths

_METRICS_PORT = 9464


def write(nodes: Sequence[DevNode]) -> None:
    """Record that these nodes are Ready, in each one's root. The first is named like the whole."""
    names = [node.name for node in nodes]
    for number, node in enumerate(nodes):
        flags = node.agent_flags(metrics_address=f"127.0.0.1:{_METRICS_PORT + 10 * number}")
        ready = {
            "nodes": names,
            "gpus": len(node.gpu_uuids),
            "environment": {
                "KUBECONFIG": str(node.kubeconfig),
                "CONTAINER_RUNTIME_ENDPOINT": f"unix://{node.layout.containerd_socket}",
                **{f"KUBEMEND_{key.upper().replace('-', '_')}": value for key, value in flags.items()},
                **node.nvml.env(),
            },
        }
        fresh = _file(node.layout).with_suffix(".tmp")
        fresh.write_text(json.dumps(ready))
        fresh.replace(_file(node.layout))


def read(where: layout.NodeLayout) -> dict[str, Any] | None:
    """Return the record of a node; None when it is not Ready (yet, or any more)."""
    try:
        ready: dict[str, Any] = json.loads(_file(where).read_text())
    except FileNotFoundError:
        return None
    return ready


def parts(where: layout.NodeLayout) -> Iterator[tuple[str, bool, str]]:
    """Yield each part's name, whether it works, and a line about it."""
    ready = read(where)
    yield "node", ready is not None, f"{where.root}" if ready is not None else "not running"
    if ready is None:
        return
    for part in ("containerd", "kubelet"):
        running = processes.read_pid_file(where.pid_file(part))
        yield part, running is not None, f"pid {running.pid}" if running is not None else "not running"
    good, line = asyncio.run(_node_condition(where))
    yield "API", good, line
    yield "NVML", (where.nvml_dir / "state").exists(), f"{ready['gpus']} GPUs, {where.nvml_dir}"
    yield "kernel log", where.kernel_log.exists(), str(where.kernel_log)
    agent = processes.read_pid_file(where.pid_file("agent"))
    yield "agent", True, f"pid {agent.pid}" if agent is not None else "not started by this node"


async def _node_condition(where: layout.NodeLayout) -> tuple[bool, str]:
    try:
        async with client.connect(kubeconfig=where.kubeconfig) as kube:
            answer = await kube.get(f"{paths.NODES}/{where.name}")
    except errors.KubeError as error:
        return False, str(error)
    states = {item["type"]: item["status"] for item in answer.get("status", {}).get("conditions") or ()}
    return states.get("Ready") == "True", f"node {where.name} Ready={states.get('Ready', 'Unknown')}"


def _file(where: layout.NodeLayout) -> Path:
    return where.root / "ready.json"
