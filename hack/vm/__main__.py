"""``python -m hack.vm -- COMMAND…``: run a command in the virtual machine, in this directory."""

import os
import sys

import click

from hack.devnode import packages
from hack.vm import guest, machine
from kubemend.common import logs


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--cpus", default=2, show_default=True, help="Virtual processors.")
@click.option("--memory", default=8, show_default=True, help="Memory in GiB.")
@click.argument("command", nargs=-1, required=True)
def main(cpus: int, memory: int, command: tuple[str, ...]) -> None:
    """Run COMMAND where systemd is process 1, cgroup v2 has all controllers, and AppArmor is on (Debian, root).

    Its output is printed, and its exit status is this command's. What it writes is lost with the machine.
    """
    logs.configure(log_format="console")
    try:
        work = guest.Work(command, environment=guest.inherited(os.environ))
        sys.exit(machine.run(work, cpus=cpus, memory_gib=memory))
    except (packages.PackagesError, machine.MachineError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
