"""``kubemend clear`` and ``kubemend release-devices``: a person's word to the agent of this node."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from agent import settings as settings_module
from common import durations

EXIT_NOT_DONE = 1
EXIT_USAGE = 2
EXIT_NOT_REACHABLE = 3

_Answer = TypeVar("_Answer")


@click.command()
@click.argument("device")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
@settings_module.some_options("state_dir")
def clear(*, device: str, as_json: bool, state_dir: Path) -> None:
    """Say that what is held against DEVICE is dealt with; run it on the node, as root.

    DEVICE is a GPU's UUID, a PCI address, or NVML's index. What the agent still sees (a link that is down, a driver
    that wants a reset) stays until it sees the end of it.

    Exit code 0: nothing is held any more; 1: something still is, or no such device; 2: usage; 3: no agent answers.
    """
    from agent.control import devices

    done = _asked("clear", devices.clear(device, socket=_socket(state_dir)))
    if as_json:
        click.echo(json.dumps(done))
    else:
        click.echo(f"{done['device']}: {_listed(done['over'], otherwise='nothing was held')}")
        if done["still_seen"]:
            click.echo(f"  still seen, and held: {', '.join(done['still_seen'])}")
    sys.exit(EXIT_NOT_DONE if done["still_seen"] else 0)


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--for", "time", default="10m", show_default=True, help="Take the driver up again after this time.")
@click.option("--resume", is_flag=True, help="Take the driver up again now.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON; a COMMAND prints what it likes.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@settings_module.some_options("state_dir")
def release_devices(*, time: str, resume: bool, as_json: bool, command: tuple[str, ...], state_dir: Path) -> None:
    """Have the agent of this node let go of every NVML handle, so that a GPU can be reset.

    With a COMMAND, run that meanwhile, and take the driver up again when it has ended:

        kubemend release-devices nvidia-smi --gpu-reset -i 3

    Until then no fault is seen that only NVML tells of; the kernel log is read all the same.

    Exit code 0, or the command's; 1: a call into the driver hangs; 2: usage; 3: no agent answers.
    """
    from agent.control import devices

    socket = _socket(state_dir)
    if resume:
        if command:
            raise click.UsageError("--resume takes no COMMAND")
        _asked("release-devices", devices.resume(socket=socket))
        if as_json:
            click.echo(json.dumps({"released": False}))
        return
    try:
        seconds = durations.seconds(time)
    except ValueError as error:
        raise click.BadParameter(f"--for {error}") from error
    _asked("release-devices", devices.release(seconds=seconds, socket=socket))
    if not command:
        text = f"released for {time}; kubemend release-devices --resume takes them up at once"
        click.echo(json.dumps({"released": True, "seconds": seconds}) if as_json else text)
        return
    try:
        code = _run(command)
    finally:
        _asked("release-devices", devices.resume(socket=socket))
    sys.exit(code)


def _run(command: Sequence[str]) -> int:
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as error:
        click.echo(f"kubemend release-devices: cannot run {command[0]}: {error.strerror}", err=True)
        return EXIT_USAGE


def _socket(state_dir: Path) -> Path:
    from agent.control import messages

    return state_dir / messages.SOCKET


def _asked(command: str, asking: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Return the agent's answer, or say in a line why there is none and exit."""
    from agent.control import client

    try:
        return asyncio.run(asking)
    except client.NotReachableError as error:
        why, code = str(error), EXIT_NOT_REACHABLE
    except client.NotAcceptedError as error:
        why, code = str(error), EXIT_USAGE if error.usage else EXIT_NOT_DONE
    except client.LostError as error:
        why, code = str(error), EXIT_NOT_DONE
    click.echo(f"kubemend {command}: {why}", err=True)
    sys.exit(code)


def _listed(names: Sequence[str], *, otherwise: str) -> str:
    return f"cleared {', '.join(names)}" if names else otherwise
