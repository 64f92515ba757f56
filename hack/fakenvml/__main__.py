"""``python -m hack.fakenvml build DIR`` compiles the fake; ``ctl --state F …`` breaks and fixes its GPUs."""

import json
from pathlib import Path

import click

from hack.fakenvml import control
from hack.fakenvml.layout import Driver, Fault, Group

_DRIVER = {"on": Driver.LOADED, "off": Driver.ABSENT, "mismatch": Driver.MISMATCH}
_RECOVERY = {"none": 0, "reset": 1, "reboot": 2, "drain-p2p": 3, "drain-and-reset": 4}
_FAULTS = {fault.name.lower().replace("_", "-"): fault for fault in Fault}
_EVENTS = {
    "double-bit-ecc": 0x2,
    "clock": control.EVENT_CLOCK,
    "power-source": control.EVENT_POWER_SOURCE,
    "corrected-ecc-storm": control.EVENT_CORRECTED_ECC_STORM,
    "mig-config": 0x100,
    "dram-retirement": 0x400,
    "dram-retirement-failure": 0x800,
    "non-fatal-poison": 0x1000,
    "fatal-poison": 0x2000,
    "unavailable": control.EVENT_GPU_UNAVAILABLE,
    "recovery-action": control.EVENT_RECOVERY_ACTION,
}
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
@click.argument("what", type=click.Choice(list(_FAULTS)))
@pass_fake
def fault(fake: control.FakeNvml, gpu: int, what: str) -> None:
    """Make every call on a GPU answer GPU_IS_LOST, RESET_REQUIRED or UNKNOWN; none ends it."""
    fake.fault(_FAULTS[what], gpu=gpu)


@ctl.command()
@gpu_option
@pass_fake
def remove(fake: control.FakeNvml, gpu: int) -> None:
    """Take a GPU off the bus."""
    fake.remove(gpu=gpu)


@ctl.command()
@gpu_option
@pass_fake
def add(fake: control.FakeNvml, gpu: int) -> None:
    """Put a GPU on the bus; seen after the clients' next nvmlInit."""
    fake.add(gpu=gpu)


@ctl.command()
@gpu_option
@click.argument("instances", nargs=-1, metavar="[GI:CI]...")
@pass_fake
def mig(fake: control.FakeNvml, gpu: int, instances: tuple[str, ...]) -> None:
    """Turn MIG on with these instances; none turns it off."""
    try:
        pairs = [text.partition(":") for text in instances]
        specs = [control.MigSpec(gpu_instance=int(gi), compute_instance=int(ci or 0)) for gi, _, ci in pairs]
    except ValueError:
        raise click.UsageError("write each instance as GI:CI") from None
    fake.mig(*specs, gpu=gpu)


@ctl.command("set")
@gpu_option
@click.argument("readings", nargs=-1, metavar="NAME=VALUE...")
@pass_fake
def set_readings(fake: control.FakeNvml, gpu: int, readings: tuple[str, ...]) -> None:
    """Set plain numbers of a GPU, such as temperature=90 or pcie-width=8 (see `status`)."""
    pairs = [text.partition("=") for text in readings]
    try:
        fake.set(gpu=gpu, **{name.replace("-", "_"): int(value, 0) for name, _, value in pairs})
    except ValueError as error:
        raise click.UsageError(f"write each as NAME=VALUE: {error}") from None


@ctl.command()
@gpu_option
@click.option("--sram", is_flag=True, help="of SRAM (default: of DRAM)")
@click.option("--corrected", type=int, default=0)
@click.option("--uncorrected", type=int, default=0)
@pass_fake
def ecc(fake: control.FakeNvml, gpu: int, sram: bool, corrected: int, uncorrected: int) -> None:  # noqa: FBT001
    """Set the counts of ECC errors since the driver was loaded."""
    fake.ecc(gpu=gpu, corrected=corrected, uncorrected=uncorrected, sram=sram)


@ctl.command()
@gpu_option
@click.option("--pending", is_flag=True)
@click.option("--failure", is_flag=True)
@pass_fake
def remap(fake: control.FakeNvml, gpu: int, pending: bool, failure: bool) -> None:  # noqa: FBT001
    """Set the row remapper's answer; without flags: nothing to do."""
    fake.remapped_rows(gpu=gpu, uncorrectable=int(pending or failure), pending=pending, failure=failure)


@ctl.command()
@gpu_option
@click.option("--replays", type=int, help="since the driver was loaded")
@click.option("--recoveries", type=int, help="since the driver was loaded")
@click.argument("number", type=click.IntRange(0, 17))
@click.argument("state", type=click.Choice(["up", "down"]))
@pass_fake
def link(
    fake: control.FakeNvml, gpu: int, number: int, *, state: str, replays: int | None, recoveries: int | None
) -> None:
    """Set an NVLink up or down, and its error counts."""
    fake.link(number, gpu=gpu, active=state == "up", replays=replays, recoveries=recoveries)


@ctl.command()
@gpu_option
@click.argument("field_id", type=int)
@click.argument("value", type=int)
@click.option("--result", type=int, default=0, help="the nvmlReturn of this field alone")
@pass_fake
def field(fake: control.FakeNvml, gpu: int, *, field_id: int, value: int, result: int) -> None:
    """Set one value of nvmlDeviceGetFieldValues."""
    fake.field(field_id, gpu=gpu, value=value, result=result)


@ctl.command()
@gpu_option
@click.argument("function")
@click.argument("result", type=int)
@pass_fake
def error(fake: control.FakeNvml, gpu: int, function: str, result: int) -> None:
    """Make one function answer this nvmlReturn on a GPU; 0 ends it."""
    fake.error(function, result, gpu=gpu)


@ctl.command()
@gpu_option
@click.option("--times", type=click.IntRange(1), default=1, help="a storm is many")
@click.argument("what", type=click.Choice(list(_EVENTS)))
@pass_fake
def event(fake: control.FakeNvml, gpu: int, what: str, times: int) -> None:
    """Queue an event other than an Xid."""
    fake.event(_EVENTS[what], gpu=gpu, times=times)


@ctl.command()
@click.argument("group", type=click.Choice(list(_GROUPS)))
@click.argument("milliseconds", type=click.IntRange(0))
@pass_fake
def slow(fake: control.FakeNvml, group: str, milliseconds: int) -> None:
    """Delay calls by MILLISECONDS; 0 ends it."""
    fake.slow(_GROUPS[group], milliseconds=milliseconds)


@ctl.command()
@click.argument("microseconds", type=click.IntRange(0))
@pass_fake
def cost(fake: control.FakeNvml, microseconds: int) -> None:
    """Have every getter use MICROSECONDS of the processor, as a real driver does; 0 ends it."""
    fake.cost(microseconds=microseconds)


@ctl.command()
@gpu_option
@pass_fake
def healthy(fake: control.FakeNvml, gpu: int) -> None:
    """Repair a GPU; seen after the clients' next nvmlInit."""
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
@click.option("--used", type=int, help="bytes in use on the GPU (default: the usage of its processes)")
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
    """Release blocked calls."""
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
    """Repair everything."""
    fake.reset()


@ctl.command()
@pass_fake
def status(fake: control.FakeNvml) -> None:
    """Print the state as JSON."""
    click.echo(json.dumps(fake.status(), indent=2))


if __name__ == "__main__":
    main()
