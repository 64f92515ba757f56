"""Every strategy keeps what confines a container: profiles of seccomp and AppArmor, capabilities, masked paths."""

import json
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import pytest

from kubemend.agent.model.workloads import ContainerId
from kubemend.common import kernel_files
from tests.scenarios.columns.board import ALONE, DATA, SECONDS, STRATEGIES, Board, Seen

pytestmark = pytest.mark.devnode

PROFILE: Final = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}],
}
APPARMOR: Final = "kubemend-test-no-folders"
APPARMOR_SOURCE: Final = f"""\
profile {APPARMOR} flags=(attach_disconnected) {{
  file, network, capability, signal, ptrace, umount,
  deny {DATA}/folder/ w,
}}
"""
"""It allows signals, so that the runtime can end a container that runs under it."""
OF_KERNEL: Final = ("NoNewPrivs", "Seccomp", "Seccomp_filters", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
FILTERED: Final = "2"  # SECCOMP_MODE_FILTER in /proc/<pid>/status


async def confinement(board: Board, container: ContainerId) -> dict[str, Any]:
    """Return what confines a running container, for its runtime and for the kernel."""
    asked = await board.specification(container)
    status = (await board.process(container) / "status").read_text()
    fields = dict(line.split(":\t", 1) for line in kernel_files.lines(status) if ":\t" in line)
    return {
        **{name: fields[name] for name in OF_KERNEL},
        **{name: asked["process"].get(name) for name in ("capabilities", "noNewPrivileges", "apparmorProfile")},
        **{name: asked["linux"].get(name) for name in ("seccomp", "maskedPaths", "readonlyPaths")},
        "root": asked["root"].get("readonly"),
    }


async def label(board: Board, container: ContainerId) -> str:
    """Return the AppArmor profile under which the kernel runs a container."""
    return (await board.process(container) / "attr" / "current").read_text().strip()


async def check_every_restart(
    board: Board, first: Seen, *, of: Callable[[Board, ContainerId], Awaitable[object]], refuses_folders: bool
) -> None:
    """Restart a pod by every strategy: ``of`` it stays the same, and so does whether it may make a folder."""
    name, before, seen = first.pod["metadata"]["name"], await of(board, first.running[0]), first
    for strategy in STRATEGIES:
        seen = await board.restarted(name, strategy, seen)
        assert await of(board, seen.running[0]) == before, strategy
        assert not board.overlapped(seen), strategy
        made = await board.cri.exec_sync(seen.running[0], ("mkdir", "-p", f"{DATA}/folder"), timeout=SECONDS)
        assert (made.exit_code != 0) == refuses_folders, strategy


@pytest.fixture
def loaded() -> Iterator[None]:
    """Load the AppArmor profile into the kernel."""
    profile = APPARMOR_SOURCE.encode()
    subprocess.run(("apparmor_parser", "--replace", "--skip-cache"), input=profile, check=True)
    yield
    subprocess.run(("apparmor_parser", "--remove"), input=profile, check=True)


@pytest.mark.parametrize("kind", ["RuntimeDefault", "Localhost"])
async def test_seccomp_profile_and_capabilities_survive_every_restart(board: Board, kind: str) -> None:
    profile = {"type": kind}
    if kind == "Localhost":
        file = board.dev.layout.kubelet_root / "seccomp" / "no-folders.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(PROFILE))
        profile["localhostProfile"] = file.name
    context = {
        "seccompProfile": profile,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
    }
    async with board.pod(f"confined-{kind.lower()}", ALONE, securityContext=context) as first:
        before = await confinement(board, first.running[0])
        assert (before["Seccomp"], before["NoNewPrivs"], before["root"]) == (FILTERED, "1", True)
        await check_every_restart(board, first, of=confinement, refuses_folders=kind == "Localhost")


@pytest.mark.vm
@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ({"type": "RuntimeDefault"}, "cri-containerd.apparmor.d (enforce)"),
        ({"type": "Localhost", "localhostProfile": APPARMOR}, f"{APPARMOR} (enforce)"),
    ],
    ids=["RuntimeDefault", "Localhost"],
)
async def test_apparmor_profile_survives_every_restart(board: Board, profile: dict[str, str], expected: str) -> None:
    name = f"profile-{profile['type'].lower()}"
    async with board.pod(name, ALONE, securityContext={"appArmorProfile": profile}) as first:
        assert await label(board, first.running[0]) == expected
        await check_every_restart(board, first, of=label, refuses_folders=profile["type"] == "Localhost")
