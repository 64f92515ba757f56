"""``kubemend clear`` and ``kubemend release-devices``: operator commands to the agent of this node."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from kubemend.agent import settings as settings_module
from kubemend.common import durations

EXIT_NOT_DONE = 1
EXIT_USAGE = 2
EXIT_NOT_REACHABLE = 3

_Answer = TypeVar("_Answer")


@click.command()
@click.argument("device")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@settings_module.some_options("state_dir")
def clear(*, device: str, as_json: bool, state_dir: Path) -> None:
    """Clear the faults recorded for DEVICE; run it on the node, as root.

    DEVICE is a GPU's UUID, a PCI address, or NVML's index. A fault that the agent still observes (a link that is down,
    a GPU that needs a reset) stays until the agent observes its end.

    Exit code 0: no fault is left; 1: a fault is left, or no such device; 2: usage; 3: no agent answers.
    """
    from kubemend.agent.control import devices

    done = _call("clear", devices.clear(device, socket=_socket(state_dir)))
    if as_json:
        click.echo(json.dumps(done))
    else:
        click.echo(f"{done['device']}: {_listed(done['over'], otherwise='no fault was recorded')}")
        if done["still_seen"]:
            click.echo(f"  still observed, not cleared: {', '.join(done['still_seen'])}")
    sys.exit(EXIT_NOT_DONE if done["still_seen"] else 0)


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--for", "time", help="Reopen the driver after this time, at most 1h. Default: 10m; while a COMMAND runs, 1h."
)
@click.option("--resume", is_flag=True, help="Reopen the driver now.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; the output of COMMAND is unchanged.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@settings_module.some_options("state_dir")
def release_devices(
    *, time: str | None, resume: bool, as_json: bool, command: tuple[str, ...], state_dir: Path
) -> None:
    """Have the agent of this node close every NVML handle, so that a GPU can be reset.

    With a COMMAND, run it and reopen the driver when it has ended; all options after it are its own:

        kubemend release-devices nvidia-smi --gpu-reset -i 3

    Until then faults that only NVML reports are not detected; the kernel log is still read.

    Exit code 0, or the command's; 1: a call into the driver hangs; 2: usage; 3: no agent answers.
    """
    from kubemend.agent.control import devices

    socket = _socket(state_dir)
    if resume:
        if command:
            raise click.UsageError("--resume takes no COMMAND")
        _call("release-devices", devices.resume(socket=socket))
        if as_json:
            click.echo(json.dumps({"released": False}))
        return
    time = time or ("1h" if command else "10m")
    try:
        seconds = durations.seconds(time)
    except ValueError as error:
        raise click.BadParameter(f"--for {error}") from error
    if not 0 < seconds <= devices.LONGEST_RELEASE:
        raise click.BadParameter(f"--for {time}; must be more than 0s and at most 1h")
    _call("release-devices", devices.release(seconds=seconds, socket=socket))
    if not command:
        text = f"released for {time}; kubemend release-devices --resume reopens the driver at once"
        click.echo(json.dumps({"released": True, "seconds": seconds}) if as_json else text)
        return
    try:
        code = _run(command)
    finally:
        _call("release-devices", devices.resume(socket=socket))
    sys.exit(code)


def _run(command: Sequence[str]) -> int:
    """Run a command to its end, which it decides itself: a kill in the middle of a reset could wedge the GPU."""
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        click.echo(f"kubemend release-devices: cannot run {command[0]}: {error.strerror}", err=True)
        return EXIT_USAGE
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)  # a terminal sends them to the command as well
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    code = process.wait()
    return code if code >= 0 else 128 - code  # after a signal as in shells


def _socket(state_dir: Path) -> Path:
    from kubemend.agent.control import messages

    return state_dir / messages.SOCKET


def _call(command: str, call: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Return the agent's answer, or print one line with the reason and exit."""
    from kubemend.agent.control import client

    try:
        return asyncio.run(call)
    except client.NotReachableError as error:
        reason, code = str(error), EXIT_NOT_REACHABLE
    except client.NotAcceptedError as error:
        reason, code = str(error), EXIT_USAGE if error.usage else EXIT_NOT_DONE
    except client.LostError as error:
        reason, code = str(error), EXIT_NOT_DONE
    click.echo(f"kubemend {command}: {reason}", err=True)
    sys.exit(code)


def _listed(names: Sequence[str], *, otherwise: str) -> str:
    return f"cleared {', '.join(names)}" if names else otherwise
