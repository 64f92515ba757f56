"""Generate the files of the guest: what mounts its root, and the unit that runs the command."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT_TAG: Final = "root"
"""The name under which the guest mounts the host's root (9p)."""

CONSOLE: Final = "/dev/hvc0"
STATUS: Final = "/dev/hvc1"
"""Where the guest writes the command's exit status."""

TARGET: Final = "kubemend-vm.target"
_UNIT: Final = "kubemend-vm.service"
_SCRIPT: Final = "/usr/lib/kubemend-vm/command"

HIDDEN: Final = (".dockerenv",)
"""Paths of the host's root that the guest does not see. By this one systemd would take it for a container."""

INIT: Final = f"""\
#!/bin/busybox sh
busybox() {{ /bin/busybox "$@"; }}
busybox mount -t proc proc /proc
busybox mount -t devtmpfs dev /dev
for module in $(busybox cat /modules/order); do busybox insmod "/modules/$module"; done
busybox mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=524288 {ROOT_TAG} /host
busybox mount -t ext4 /dev/vda /disk
layer() {{
  busybox mkdir -p "/disk/$1/written" "/disk/$1/work"
  busybox mount -t overlay -o "lowerdir=/host$2,upperdir=/disk/$1/written,workdir=/disk/$1/work" "$1" "/root$2"
}}
layer root ""
busybox mkdir -p /disk/tmp
busybox chmod 1777 /disk/tmp
busybox mount --bind /disk/tmp /root/tmp  # no layer: nodes of tests keep overlays there, and none lies on another
busybox mkdir -p "/root$share"; layer share "$share"
busybox umount /proc
busybox mount --move /dev /root/dev
exec busybox switch_root /root /usr/lib/systemd/systemd
"""
"""The script that mounts the root and starts systemd. The kernel gives it ``share``, the directory of the checkout."""


@dataclass(frozen=True, slots=True)
class Work:
    """Describe what the guest does: a command, run in ``directory`` with these environment variables only."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: Path = field(default_factory=Path.cwd)


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the host that the command gets: the search path, and those of the dev node."""
    return {
        name: value
        for name, value in environment.items()
        if name in ("HOME", "LANG", "PATH") or name.startswith("KUBEMEND_")
    }


def files(work: Work) -> dict[str, str]:
    """Return the guest's own files by their paths. The units start the command and, at its end, turn the guest off."""
    target = "[Unit]\nDescription=What runs in the guest\nRequires=basic.target\nAfter=basic.target\n"
    unit = f"""\
[Unit]
Description=The command
After=basic.target
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
ExecStart=/bin/sh {_SCRIPT}
StandardInput=null
StandardOutput=file:{CONSOLE}
StandardError=file:{CONSOLE}
TasksMax=infinity
LimitNOFILE=1048576
"""
    return {
        f"/etc/systemd/system/{TARGET}": f"{target}Wants={_UNIT}\n",
        f"/etc/systemd/system/{_UNIT}": unit,
        _SCRIPT: _script(work),
        "/etc/fstab": "",
        "/etc/machine-id": "",
    }


def _script(work: Work) -> str:
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in work.environment.items())
    return f"""\
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
{exports}cd {shlex.quote(str(work.directory))}
{shlex.join(work.command)}
echo "$?" > {STATUS}
"""
