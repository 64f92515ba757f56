"""``python -m hack.devnode``: a dev node from the command line.

``start`` leaves one supervisor process behind that holds the whole node; ``stop`` ends it and removes what a crashed
one left. Everything that is to know about a running node is in its root directory.
"""

import asyncio
import json
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from common import logs
from common.kube import client, errors, paths
from hack.devnode import claims, layout, leftovers, node, packages, processes
from hack.devnode.containerd import ContainerdError
from hack.devnode.images import ImagesError
from hack.devnode.kubelet import process
from hack.devnode.network import NetworkError
from hack.fakenvml import control as nvml_control

_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_METRICS_ADDRESS = "127.0.0.1:9464"
_PROBLEMS = (
    claims.NodeInUseError,
    ContainerdError,
    ImagesError,
    layout.LayoutError,
    NetworkError,
    packages.PackagesError,
    processes.ProcessError,
)

name_option = click.option("--name", default="dev", show_default=True, help="The node's name; several may run.")


class _Group(click.Group):
    """Says what went wrong in one line instead of a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except _PROBLEMS as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group)
def main() -> None:
    """A Kubernetes node for development: real containerd, real or stand-in API and kubelet, made-up GPUs."""


@main.command()
def setup() -> None:
    """Fetch what is missing on this machine (Debian, root)."""
    logs.configure(log_format="console")
    node.setup()


@main.command()
@name_option
@click.option("--gpus", type=click.IntRange(0, 16), default=8, show_default=True)
@click.option("--stand-ins", is_flag=True, help="Use the stand-ins even where $KUBEBUILDER_ASSETS has the real parts.")
def start(name: str, gpus: int, *, stand_ins: bool) -> None:
    """Start a node in the background; returns when it is Ready."""
    where = layout.NodeLayout.named(name)
    log = _supervisor_log(where)
    log.unlink(missing_ok=True)
    flags = ["--stand-ins"] if stand_ins else []
    child = processes.Child.start(
        [sys.executable, "-m", "hack.devnode", "run", f"--name={name}", f"--gpus={gpus}", *flags],
        name=f"dev node {name}",
        log=log,
        pid_file=_supervisor_pid(where),
        environment=process.source_environment(),
        dies_with_us=False,
    )
    asyncio.run(_until_ready(child, where))
    click.echo(f"dev node {name} is Ready; export KUBECONFIG={where.kubeconfig}")


@main.command()
@name_option
@click.option("--gpus", type=click.IntRange(0, 16), default=8, show_default=True)
@click.option("--stand-ins", is_flag=True, help="Use the stand-ins even where $KUBEBUILDER_ASSETS has the real parts.")
def run(name: str, gpus: int, *, stand_ins: bool) -> None:
    """Run a node in the foreground until Ctrl-C or SIGTERM."""
    logs.configure(log_format="console")
    real = False if stand_ins else None
    asyncio.run(_hold(name, node.Options(gpus=gpus, real_api=real, real_kubelet=real)))


@main.command()
@name_option
def stop(name: str) -> None:
    """Stop a node and remove everything of it, be it running or crashed."""
    where = layout.NodeLayout.named(name)
    asyncio.run(_stop(where))
    for line in leftovers.find(where):
        raise click.ClickException(f"dev node {name} is not gone: {line}")
    click.echo(f"dev node {name} is gone")


@main.command()
@name_option
def status(name: str) -> None:
    """Print a line per part; exit code 1 when the node is not Ready."""
    where = layout.NodeLayout.named(name)
    fine = True
    for part, good, line in _parts(where):
        fine = fine and good
        click.echo(f"{part:<16}{line}")
    sys.exit(0 if fine else 1)


@main.command()
@name_option
def env(name: str) -> None:
    """Print shell variables with which kubectl, crictl and `kubemend agent` use the node: eval "$(… env)"."""
    where = layout.NodeLayout.named(name)
    ready = _read_ready(where)
    if ready is None:
        mend = f"python -m hack.devnode start --name {name}"
        raise click.ClickException(f"dev node {name} is not running; start it: {mend}")
    for key, value in ready["environment"].items():
        click.echo(f"export {key}={shlex.quote(value)}")


async def _hold(name: str, options: node.Options) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with node.DevNode.named(name, options=options) as held:
        _write_ready(held)
        click.echo(f"dev node {name} is Ready; export KUBECONFIG={held.kubeconfig}")
        await ended.wait()


async def _until_ready(child: processes.Child, where: layout.NodeLayout) -> None:
    try:
        async with asyncio.timeout(_START_SECONDS):
            while _read_ready(where) is None:
                if child.returncode is not None:
                    raise processes.ProcessError(_last_line(_supervisor_log(where)) or f"{child.name} did not start")
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError as error:
        log = _supervisor_log(where)
        raise processes.ProcessError(f"{child.name} is not Ready after {_START_SECONDS:g} s; see {log}") from error


async def _stop(where: layout.NodeLayout) -> None:
    supervisor = processes.read_pid_file(_supervisor_pid(where))
    if supervisor is not None:
        await processes.terminate([supervisor], grace=_STOP_SECONDS)
    claim = claims.Claim(where)
    claim.take()
    try:
        await leftovers.reap(where)
    finally:
        claim.give_back()
    for path in (_supervisor_pid(where), _supervisor_log(where)):
        path.unlink(missing_ok=True)


def _parts(where: layout.NodeLayout) -> Iterator[tuple[str, bool, str]]:
    """Yield each part's name, whether it is fine, and a line about it."""
    ready = _read_ready(where)
    supervisor = processes.read_pid_file(_supervisor_pid(where))
    yield "node", ready is not None, f"{where.root}" if ready is not None else "not running"
    yield "supervisor", True, f"pid {supervisor.pid}" if supervisor is not None else "in the foreground, or not running"
    if ready is None:
        return
    for part in ("containerd", "kubelet"):
        running = processes.read_pid_file(where.pid_file(part))
        kind = f" ({ready['kinds'][part]})" if part in ready["kinds"] else ""
        yield part, running is not None, f"pid {running.pid}{kind}" if running is not None else "not running"
    good, line = asyncio.run(_node_condition(where))
    yield "API", good, f"{line} ({ready['kinds']['api']})"
    with nvml_control.FakeNvml(where.nvml_dir / "state", where.nvml_dir) as nvml:
        yield "NVML", True, f"driver {nvml.status()['driver']}, {ready['gpus']} GPUs, {where.nvml_dir}"
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


def _write_ready(held: node.DevNode) -> None:
    flags = held.agent_flags(metrics_address=_METRICS_ADDRESS)
    ready = {
        "gpus": held.options.gpus,
        "kinds": held.kinds,
        "environment": {
            "KUBECONFIG": str(held.kubeconfig),
            "CONTAINER_RUNTIME_ENDPOINT": f"unix://{held.layout.containerd_socket}",
            **{f"KUBEMEND_{key.upper().replace('-', '_')}": value for key, value in flags.items()},
            **held.nvml.env(),
        },
    }
    fresh = _ready_file(held.layout).with_suffix(".tmp")
    fresh.write_text(json.dumps(ready))
    fresh.replace(_ready_file(held.layout))


def _read_ready(where: layout.NodeLayout) -> dict[str, Any] | None:
    try:
        ready: dict[str, Any] = json.loads(_ready_file(where).read_text())
    except FileNotFoundError:
        return None
    return ready


def _ready_file(where: layout.NodeLayout) -> Path:
    return where.root / "ready.json"


def _supervisor_pid(where: layout.NodeLayout) -> Path:
    """Beside the root, which is removed while the supervisor still runs."""
    return where.root.with_name(f"{where.root.name}.pid")


def _supervisor_log(where: layout.NodeLayout) -> Path:
    return where.root.with_name(f"{where.root.name}.log")


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return ""
    return lines[-1].removeprefix("Error: ") if lines else ""


if __name__ == "__main__":
    main()
