"""``python -m hack.fakenvml build DIR`` compiles the fake; ``ctl --state F …`` breaks and mends its GPUs."""

import json
from pathlib import Path

import click

from hack.fakenvml import control
from hack.fakenvml.layout import Driver, Group

_DRIVER = {"on": Driver.LOADED, "off": Driver.ABSENT, "mismatch": Driver.MISMATCH}
_RECOVERY = {"none": 0, "reset": 1, "reboot": 2, "drain-p2p": 3, "drain-and-reset": 4}
_GROUPS = {group.name.lower(): group for group in Group if group.name is not None} | {"all": Group.ALL}

pass_fake = click.make_pass_decorator(control.FakeNvml)
gpu_option = click.option("--gpu", type=click.IntRange(0, 15), required=True, help="number of the GPU")


@click.group()
def main() -> None:
    """A fake libnvidia-ml.so.1 for demos and tests."""


@main.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def build(directory: Path) -> None:
    """Compile libnvidia-ml.so.1 into DIRECTORY."""
    click.echo(control.build(directory))


@main.group()
@click.option("--state", type=click.Path(dir_okay=False, path_type=Path), required=True, help="the state file")
@click.option("--gpus", type=click.IntRange(0, 16), default=8, help="GPUs of a new state file")
@click.pass_context
def ctl(context: click.Context, state: Path, gpus: int) -> None:
    """Change the state while clients run; creates the file when there is none."""
    context.obj = context.with_resource(control.FakeNvml(state, state.parent, gpus=gpus))


@ctl.command()
@gpu_option
@click.option("--code", type=int, required=True)
@click.option("--gi", type=int, default=control.NO_INSTANCE, help="MIG GPU instance")
@click.option("--ci", type=int, default=control.NO_INSTANCE, help="MIG compute instance")
@pass_fake
def xid(fake: control.FakeNvml, gpu: int, code: int, gi: int, ci: int) -> None:
    """Queue an Xid event."""
    fake.xid(gpu=gpu, code=code, gpu_instance=gi, compute_instance=ci)


@ctl.command()
@gpu_option
@pass_fake
def lost(fake: control.FakeNvml, gpu: int) -> None:
    """Make a GPU answer GPU_IS_LOST."""
    fake.lost(gpu=gpu)


@ctl.command()
@gpu_option
@pass_fake
def healthy(fake: control.FakeNvml, gpu: int) -> None:
    """Mend a GPU; seen after the clients' next nvmlInit."""
    fake.healthy(gpu=gpu)


@ctl.command()
@gpu_option
@click.argument("action", type=click.Choice(list(_RECOVERY)))
@pass_fake
def recovery(fake: control.FakeNvml, gpu: int, action: str) -> None:
    """Set the driver's recovery action (field 230)."""
    fake.recovery(_RECOVERY[action], gpu=gpu)


@ctl.command()
@gpu_option
@click.option("--used", type=int, help="bytes in use on the GPU (default: what its processes use)")
@click.argument("processes", nargs=-1, metavar="[PID:BYTES]...")
@pass_fake
def processes(fake: control.FakeNvml, gpu: int, used: int | None, processes: tuple[str, ...]) -> None:
    """Set the compute processes on a GPU; none clears them."""
    try:
        used_by_pid = {int(pid): int(size) for pid, _, size in (text.partition(":") for text in processes)}
    except ValueError:
        raise click.UsageError("write each process as PID:BYTES") from None
    fake.processes(used_by_pid, gpu=gpu, used=used)


@ctl.command()
@click.option("--gpu", type=click.IntRange(0, 15), default=None, help="one GPU only")
@click.argument("group", type=click.Choice(list(_GROUPS)), default="all")
@pass_fake
def hang(fake: control.FakeNvml, gpu: int | None, group: str) -> None:
    """Make calls block until `resume`."""
    fake.hang(_GROUPS[group], gpu=gpu)


@ctl.command()
@pass_fake
def resume(fake: control.FakeNvml) -> None:
    """Let hanging calls go on."""
    fake.resume()


@ctl.command()
@click.argument("what", type=click.Choice(list(_DRIVER)))
@pass_fake
def driver(fake: control.FakeNvml, what: str) -> None:
    """Load, unload or upgrade the driver."""
    fake.driver(_DRIVER[what])


@ctl.command()
@pass_fake
def reset(fake: control.FakeNvml) -> None:
    """Make everything well again."""
    fake.reset()


@ctl.command()
@pass_fake
def status(fake: control.FakeNvml) -> None:
    """Print the state as JSON."""
    click.echo(json.dumps(fake.status(), indent=2))


if __name__ == "__main__":
    main()
