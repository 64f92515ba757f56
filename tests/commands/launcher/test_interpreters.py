"""A spare imports what the program has imported, no more, and in the program's own interpreter."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher import kubemend_run
from tests.commands.launcher.running import Running


async def takes_over(launcher: Running, spare: int) -> None:
    """The program fails, the spare becomes the next one, and that one completes."""
    launcher.order("sys.exit(3)")
    assert await launcher.nth(2, "begin") == spare
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


_WRAPPER = """#!/bin/sh
asked=$({python} -c 'print(1)')
exec {python} "$@"
"""


@pytest.mark.pythons
async def test_interpreter_that_a_wrapper_script_asks_before_is_not_taken_for_the_program(launcher: Running) -> None:
    """It would take the spare's release, and the program itself would end without one."""
    launcher.write("python3", _WRAPPER.format(python=launcher.python))
    (launcher.folder / "python3").chmod(0o755)
    launcher.start(command=[str(launcher.folder / "python3"), "train.py"])
    await launcher.nth(1, "begin")
    spare = await launcher.spare()
    await launcher.said("the spare is ready")
    await takes_over(launcher, spare)


_LAZY = """
import importlib.util, sys
spec = importlib.util.find_spec("broken")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["broken"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""


@pytest.mark.pythons
async def test_lazy_module_that_the_program_has_not_used_is_not_imported_by_the_spare(launcher: Running) -> None:
    """As librosa and scikit-image have some. This one fails at its import, which would end the spare."""
    launcher.write("lazy.py", _LAZY)
    launcher.write("broken.py", "raise ImportError")
    launcher.program("import lazy")
    launcher.start()
    await launcher.nth(1, "begin")
    spare = await launcher.spare()
    await launcher.said("the spare ")
    await takes_over(launcher, spare)


@pytest.mark.parametrize(
    ("visible", "count"), [("", 0), ("-1", 0), ("1", 1), ("1, 0", 2), ("0,-1,1", 1), ("2", 0), ("GPU-5f,MIG-7c", 2)]
)
def test_gpus_that_cuda_hides_from_the_program_are_not_counted_in_the_spare(
    visible: str, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A module chooses its device at its import: ``"cuda" if torch.cuda.is_available() else "cpu"``."""
    for number in range(2):
        (tmp_path / f"nvidia{number}").touch()
    torch = SimpleNamespace(_cuda_getDeviceCount=lambda: 7)
    monkeypatch.setitem(sys.modules, "torch._C", torch)
    counter = kubemend_run.GpuCount((f"{tmp_path}/nvidia",))
    counter.find_spec("torch._utils")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert torch._cuda_getDeviceCount() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert torch._cuda_getDeviceCount() == count
    counter.end()
    assert torch._cuda_getDeviceCount() == 7
