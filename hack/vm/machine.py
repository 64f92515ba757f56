"""Make the guest's kernel, initial file system and disk, and run it with QEMU."""

import gzip
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hack.devnode import apt, packages
from hack.vm import guest

_QEMU: Final = "qemu-system-x86"
_KERNEL: Final = "linux-image-amd64"
_PROGRAMS: Final = ("apparmor", "kmod", "systemd")
_DISK_BYTES: Final = 16 << 30  # sparse: only what is written takes room
_SECONDS: Final = 300.0

_AT_BOOT: Final = (
    "virtio_pci",
    "virtio_blk",
    "virtio_console",
    "crc32c_generic",
    "ext4",
    "9p",
    "9pnet_virtio",
    "overlay",
)
"""Modules without which the guest cannot mount its root; systemd and the kernel load the others."""


class MachineError(RuntimeError):
    """The guest did not run the command to its end. The message is one line: what happened, and the hint."""


def run(work: guest.Work, *, cpus: int, memory_gib: int) -> int:
    """Run a command in a new guest and return its exit status; its output goes to this process's.

    Raises MachineError, and packages.PackagesError when a package cannot be fetched.
    """
    if os.geteuid() != 0:
        raise MachineError("the guest's root is the host's, which only root can read; run this as root")
    packages.ensure_host_packages((_QEMU, "e2fsprogs"))
    busybox = packages.ensure_packages().busybox
    system = packages.ensure("vm", _fetch)
    with tempfile.TemporaryDirectory(prefix="kubemend-vm-") as name:
        directory = Path(name)
        kernel, initial = next(system.glob("boot/vmlinuz-*")), directory / "initial"
        _write_initial(initial, modules=next(system.glob("usr/lib/modules/*")), busybox=busybox)
        disk = directory / "disk"
        _write_disk(disk, system=system, work=work)
        status = directory / "status"
        devices = _devices(disk=disk, status=status)
        command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max", "-smp", str(cpus)]
        command += ["-m", f"{memory_gib}G", "-nodefaults", "-no-reboot", "-display", "none", "-kernel", str(kernel)]
        command += ["-initrd", str(initial), "-append", _kernel_arguments(), *devices]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
        reported = status.read_text(encoding="utf-8").split() if status.exists() else []
    if ended.returncode != 0 or not reported:
        raise MachineError(f"the guest ended before its command (QEMU: {ended.returncode}); its output has the reason")
    return int(reported[-1])


def _fetch(target: Path) -> None:
    """Unpack the kernel and the programs that this machine has not installed, as an upper layer of its root."""
    machine = apt.this_machine()
    with packages.staging(target) as folder:
        installed = Path("/var/lib/dpkg/status")
        wanted = (_KERNEL, *_PROGRAMS)
        apt.unpack_with_dependencies(machine, suite=machine.codename, packages=wanted, into=folder, beside=installed)
        _index_modules(folder)
        apt.move_below_usr(folder)  # else such a directory would hide the root's link of that name


def _index_modules(folder: Path) -> None:
    """Write the modules' dependencies, as the maintainer script of the kernel's package does."""
    release = next(folder.glob("lib/modules/*")).name
    unpacked = folder / "bin/kmod"
    libraries = ":".join(str(each) for each in folder.glob("*lib/*-linux-gnu"))
    subprocess.run(
        ("depmod", "-b", str(folder), release),
        executable=unpacked if unpacked.exists() else None,
        env={**os.environ, "LD_LIBRARY_PATH": libraries},
        check=True,
        timeout=_SECONDS,
    )


def _write_initial(file: Path, *, modules: Path, busybox: Path) -> None:
    """Write the initial file system: busybox, the modules for the disks in their order, and the script."""
    with tempfile.TemporaryDirectory(prefix="kubemend-vm-") as name:
        root = Path(name)
        for directory in ("bin", "dev", "disk", "host", "modules", "proc", "root"):
            (root / directory).mkdir()
        shutil.copy2(busybox, root / "bin/busybox")
        order = load_order((modules / "modules.dep").read_text(encoding="utf-8"), _AT_BOOT)
        for path in order:
            shutil.copy2(modules / path, root / "modules")
        (root / "modules/order").write_text("".join(f"{Path(path).name}\n" for path in order), encoding="utf-8")
        (root / "init").write_text(guest.INIT, encoding="utf-8")
        (root / "init").chmod(0o755)
        names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
        archive = _answer(str(busybox), "cpio", "-o", "-H", "newc", directory=root, question=names.encode())
        file.write_bytes(gzip.compress(archive, compresslevel=1))


def load_order(dependencies: str, wanted: Sequence[str]) -> list[str]:
    """Return the paths of modules, each after those that it needs. ``dependencies`` is a modules.dep (depmod(8)).

    A module that the kernel contains is not listed there, nor needed.
    """
    needs = {path: others.split() for path, _, others in (line.partition(":") for line in dependencies.splitlines())}
    order: list[str] = []
    for path in (path for name in wanted for path in needs if Path(path).stem == name):
        order += [each for each in (*reversed(needs[path]), path) if each not in order]
    return order


def _write_disk(disk: Path, *, system: Path, work: guest.Work) -> None:
    """Write a file system with the layer over the host's root: kernel modules, missing programs, the guest's files."""
    with tempfile.TemporaryDirectory(prefix="kubemend-vm-", dir=system.parent) as name:
        layer = Path(name, "root", "written")
        shutil.copytree(system, layer, symlinks=True, copy_function=os.link)
        for path, content in guest.files(work).items():
            target = layer / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)  # it may be a link to the unpacked package's file
            target.write_text(content, encoding="utf-8")
        for path in guest.HIDDEN:
            os.mknod(layer / path, stat.S_IFCHR, 0)  # a whiteout (overlayfs.rst)
        with disk.open("wb") as file:
            file.truncate(_DISK_BYTES)
        _answer("mke2fs", "-q", "-F", "-t", "ext4", "-d", name, str(disk), directory=disk.parent)


def _kernel_arguments() -> str:
    services = ("udevd", "timesyncd", "networkd", "resolved", "logind")
    masked = (*(f"{name}.service" for name in services), "udevd-control.socket", "udevd-kernel.socket")
    return " ".join(
        (
            "console=hvc0 loglevel=2 panic=-1 mitigations=off random.trust_cpu=on apparmor=1 security=apparmor",
            f"systemd.unit={guest.TARGET} systemd.show_status=0 systemd.unified_cgroup_hierarchy=1",
            f"share={packages.CHECKOUT}",
            *(f"systemd.mask=systemd-{unit}" for unit in masked),
        )
    )


def _devices(*, disk: Path, status: Path) -> list[str]:
    """Return QEMU's options for the guest's devices: two consoles, the disk, and the host's root."""
    root = "local,id=root,path=/,security_model=passthrough,readonly=on,multidevs=remap"
    options = (
        ("-device", "virtio-serial-pci"),
        ("-chardev", "stdio,id=output,signal=off"),
        ("-device", "virtconsole,chardev=output"),
        ("-chardev", f"file,id=status,path={status}"),
        ("-device", "virtconsole,chardev=status"),
        ("-drive", f"file={disk},if=none,id=disk,format=raw,cache=unsafe"),
        ("-device", "virtio-blk-pci,drive=disk"),
        ("-fsdev", root),
        ("-device", f"virtio-9p-pci,fsdev=root,mount_tag={guest.ROOT_TAG}"),
        ("-device", "virtio-rng-pci"),
    )
    return [each for option in options for each in option]


def _answer(*command: str, directory: Path, question: bytes = b"") -> bytes:
    try:
        return subprocess.run(
            command, cwd=directory, input=question, capture_output=True, timeout=_SECONDS, check=True
        ).stdout
    except subprocess.CalledProcessError as error:
        raise MachineError(f"{command[0]} failed: {error.stderr.decode().strip()[-300:]}") from error
