"""Every strategy keeps a container's AppArmor profile. Only kernels with AppArmor can run this: see `make test-vm`."""

import subprocess
from collections.abc import Iterator
from typing import Final

import pytest

from kubemend.agent.model.workloads import ContainerId
from tests.scenarios.columns.board import ALONE, DATA, SECONDS, STRATEGIES, Board

pytestmark = [pytest.mark.devnode, pytest.mark.vm]

PROFILE: Final = "kubemend-test-no-folders"
SOURCE: Final = f"""\
profile {PROFILE} flags=(attach_disconnected) {{
  file, network, capability, signal, ptrace, umount,
  deny {DATA}/folder/ w,
}}
"""


@pytest.fixture
def loaded() -> Iterator[None]:
    """Load the profile into the kernel. As it allows signals, the runtime can end what runs under it."""
    subprocess.run(("apparmor_parser", "--replace", "--skip-cache"), input=SOURCE.encode(), check=True)
    yield
    subprocess.run(("apparmor_parser", "--remove"), input=SOURCE.encode(), check=True)


async def label(board: Board, container: ContainerId) -> str:
    """Return the profile under which the kernel runs a container (apparmor.d(5))."""
    return (await board.process(container) / "attr" / "current").read_text().strip()


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ({"type": "RuntimeDefault"}, "cri-containerd.apparmor.d (enforce)"),
        ({"type": "Localhost", "localhostProfile": PROFILE}, f"{PROFILE} (enforce)"),
    ],
    ids=["RuntimeDefault", "Localhost"],
)
async def test_apparmor_profile_survives_every_restart(board: Board, profile: dict[str, str], expected: str) -> None:
    name = f"profile-{profile['type'].lower()}"
    async with board.pod(name, ALONE, securityContext={"appArmorProfile": profile}) as first:
        assert await label(board, first.running[0]) == expected
        seen = first
        for strategy in STRATEGIES:
            seen = await board.restarted(name, strategy, seen)
            assert await label(board, seen.running[0]) == expected, strategy
            assert not board.overlapped(seen), strategy
            made = await board.cri.exec_sync(seen.running[0], ("mkdir", "-p", f"{DATA}/folder"), timeout=SECONDS)
            assert (made.exit_code != 0) == (profile["type"] == "Localhost"), strategy
