"""The program's interpreter has the spare's imports, whatever runs before it under its name or within its start."""

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
