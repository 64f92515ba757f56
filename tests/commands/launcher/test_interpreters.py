"""A spare imports what the program has imported, no more, and in the program's own interpreter."""

import pytest

from tests.commands.launcher.running import Running

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
    launcher.order("sys.exit(3)")
    assert await launcher.nth(2, "begin") == spare
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


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
    launcher.order("sys.exit(3)")
    assert await launcher.nth(2, "begin") == spare
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0
