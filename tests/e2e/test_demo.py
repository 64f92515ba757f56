"""Run ``make demo`` as a newcomer does: its exit code is 0 if everything went as it prints."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = [pytest.mark.devnode, pytest.mark.timeout(600)]

_ROOT: Final = Path(__file__).parents[2]


async def test_demo_shows_what_it_promises() -> None:
    demo = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hack.demo", cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        shown, _ = await demo.communicate()
    finally:
        if demo.returncode is None:
            demo.terminate()
    assert demo.returncode == 0, shown.decode()
