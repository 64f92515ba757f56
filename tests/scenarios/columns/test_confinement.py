"""Every strategy keeps what confines a container: its seccomp profile, its capabilities and its masked paths."""

import json
from typing import Any, Final

import pytest

from kubemend.agent.model.workloads import ContainerId
from kubemend.common import kernel_files
from tests.scenarios.columns.board import ALONE, DATA, SECONDS, STRATEGIES, Board

pytestmark = pytest.mark.devnode

PROFILE: Final = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}],
}
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
    name = f"confined-{kind.lower()}"
    async with board.pod(name, ALONE, securityContext=context) as first:
        before = await confinement(board, first.running[0])
        assert (before["Seccomp"], before["NoNewPrivs"], before["root"]) == (FILTERED, "1", True)
        seen = first
        for strategy in STRATEGIES:
            seen = await board.restarted(name, strategy, seen)
            assert await confinement(board, seen.running[0]) == before, strategy
            assert not board.overlapped(seen), strategy
            made = await board.cri.exec_sync(seen.running[0], ("mkdir", "-p", f"{DATA}/folder"), timeout=SECONDS)
            assert (made.exit_code != 0) == (kind == "Localhost"), strategy
