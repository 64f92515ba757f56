"""``python -m hack.devnode``: a dev node from the command line.

``start`` leaves one supervisor process behind that holds the whole node; ``stop`` ends it and removes the remains of a
crashed one. All information about a running node is in its root directory.
"""

import asyncio
import contextlib
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click

from hack.devnode import (
    claims,
    cluster,
    controllers,
    crio,
    kubernetes,
    layout,
    leftovers,
    node,
    packages,
    processes,
    ready,
    runtime_config,
)
from hack.devnode.containerd import ContainerdError
from hack.devnode.images import ImagesError
from hack.devnode.network import NetworkError
from kubemend.common import logs

_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.1
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


def _kind_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that select the kind of node."""
    for option in (
        click.option("--gpus", type=click.IntRange(0, 16), default=8, show_default=True, help="Of each node."),
        click.option("--nodes", type=click.IntRange(1, 16), default=1, show_default=True, help="NAME, NAME-2, …"),
        click.option("--runtime", type=click.Choice(runtime_config.PROGRAMS), default=runtime_config.CONTAINERD),
        click.option("--gang", is_flag=True, help="Also run a controller, and on every node an agent of its hub."),
    ):
        command = option(command)
    return command


class _Group(click.Group):
    """Report errors in one line instead of a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except _PROBLEMS as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group)
def main() -> None:
    """A Kubernetes node for development: real API server, kubelet and runtime; only the GPUs are simulated."""


@main.command()
def setup() -> None:
    """Fetch the programs that this machine lacks (Debian, root)."""
    logs.configure(log_format="console")
    node.setup()
    packages.ensure_promtool()
    packages.ensure_dbus_daemon()
    packages.ensure_crun()
    for version in packages.PYTHONS:
        packages.ensure_python(version)


@main.command("kubernetes")
def build_kubernetes() -> None:
    """Build Kubernetes' own programs from its Go modules, once."""
    logs.configure(log_format="console")
    click.echo(kubernetes.ensure())


@main.command("crio")
def build_crio() -> None:
    """Build CRI-O from its Go module, once."""
    logs.configure(log_format="console")
    click.echo(crio.ensure())


@main.command()
def versions() -> None:
    """Print the version that each real part of a dev cluster reports."""
    answers = packages.ensure_packages().reported()
    answers |= {"cri-o": crio.reported()} if not crio.missing() else {}
    answers |= kubernetes.reported(where) if (where := kubernetes.assets()) else {}
    for name, version in answers.items():
        click.echo(f"{name:<26}{version}")


@main.command()
@name_option
@_kind_options
def start(*, name: str, gpus: int, nodes: int, runtime: str, gang: bool) -> None:
    """Start a node in the background; returns when it is Ready."""
    where = layout.NodeLayout.named(name)
    log = _supervisor_log(where)
    log.unlink(missing_ok=True)
    kind = [f"--name={name}", f"--gpus={gpus}", f"--nodes={nodes}", f"--runtime={runtime}"]
    child = processes.Child.start(
        [sys.executable, "-m", "hack.devnode", "run", *kind, *(["--gang"] if gang else [])],
        name=f"dev node {name}",
        log=log,
        pid_file=_supervisor_pid(where),
        environment=processes.source_environment(),
        dies_with_us=False,
    )
    asyncio.run(_until_ready(child, where))
    click.echo(f"dev node {name} is Ready; export KUBECONFIG={where.kubeconfig}")


@main.command()
@name_option
@_kind_options
def run(*, name: str, gpus: int, nodes: int, runtime: str, gang: bool) -> None:
    """Run a node in the foreground until Ctrl-C or SIGTERM."""
    logs.configure(log_format="console")
    options = node.Options(gpus=gpus, runtime=runtime_config.RuntimeOptions(program=runtime))
    asyncio.run(_hold(name, nodes=nodes, gang=gang, options=options))


@main.command()
@name_option
def stop(name: str) -> None:
    """Stop a node and remove everything of it, running or crashed."""
    where = layout.NodeLayout.named(name)
    every = _with_neighbours(where)
    asyncio.run(_stop(every))
    for line in (line for each in every for line in leftovers.find(each)):
        raise click.ClickException(f"dev node {name} is not gone: {line}")
    click.echo(f"dev node {name} is gone")


@main.command()
@name_option
def status(name: str) -> None:
    """Print a line per part; exit code 1 when the node is not Ready."""
    fine = True
    for where in _with_neighbours(layout.NodeLayout.named(name)):
        for part, good, line in ready.parts(where):
            fine = fine and good
            click.echo(f"{part:<16}{line}")
    supervisor = processes.read_pid_file(_supervisor_pid(layout.NodeLayout.named(name)))
    click.echo(f"{'supervisor':<16}{f'pid {supervisor.pid}' if supervisor else 'in the foreground, or not running'}")
    sys.exit(0 if fine else 1)


@main.command()
@name_option
def env(name: str) -> None:
    """Print shell variables with which kubectl, crictl and `kubemend agent` use the node: eval "$(… env)"."""
    where = layout.NodeLayout.named(name)
    noted = ready.read(where)
    if noted is None:
        hint = f"python -m hack.devnode start --name {name}"
        raise click.ClickException(f"dev node {name} is not running; start it: {hint}")
    for key, value in noted["environment"].items():
        click.echo(f"export {key}={shlex.quote(value)}")


async def _hold(name: str, *, nodes: int, gang: bool, options: node.Options) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with contextlib.AsyncExitStack() as stack:
        held = await stack.enter_async_context(
            cluster.Cluster(layout.NodeLayout.named(name), nodes=nodes, options=options)
        )
        if gang:
            made = await stack.enter_async_context(controllers.Controllers.on(held.nodes))
            await stack.enter_async_context(made.run())
            for each in held.nodes:
                await stack.enter_async_context(made.agent(each))
        ready.write(held.nodes)
        click.echo(f"dev node {name} is Ready; export KUBECONFIG={held.first.kubeconfig}")
        await ended.wait()


async def _until_ready(child: processes.Child, where: layout.NodeLayout) -> None:
    try:
        async with asyncio.timeout(_START_SECONDS):
            while ready.read(where) is None:
                if child.returncode is not None:
                    raise processes.ProcessError(_last_line(_supervisor_log(where)) or f"{child.name} did not start")
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError as error:
        log = _supervisor_log(where)
        raise processes.ProcessError(f"{child.name} is not Ready after {_START_SECONDS:g} s; see {log}") from error


def _with_neighbours(where: layout.NodeLayout) -> list[layout.NodeLayout]:
    """Return the layouts of all nodes that were started together, the first one first."""
    names = (ready.read(where) or {}).get("nodes", [where.name])
    return [where, *(where.neighbour(number) for number in range(2, len(names) + 1))]


async def _stop(every: list[layout.NodeLayout]) -> None:
    where = every[0]
    supervisor = processes.read_pid_file(_supervisor_pid(where))
    if supervisor is not None:
        await processes.terminate([supervisor], grace=_STOP_SECONDS)
    for each in every:
        claim = claims.Claim(each)
        claim.take()
        try:
            await leftovers.reap(each)
        finally:
            claim.give_back()
    for path in (_supervisor_pid(where), _supervisor_log(where)):
        path.unlink(missing_ok=True)


def _supervisor_pid(where: layout.NodeLayout) -> Path:
    """Next to the root, which is removed while the supervisor still runs."""
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
