"""A spare calls the program's function after its imports; a restart finds the result, or is as without it."""

import os
import signal

import pytest

from launcher import kubemend_run
from tests import eventually
from tests.commands.launcher.running import Running, alive

_PREPARED = """
import events, os, signal, sys, time
made = []
def prepare():
    events.say("preparing")
    {body}
    made.append(os.getpid())
    events.say("prepared")
    return sys.argv
"""
_SHOW = "sys.stdout.write(str(sys.modules['made'].made) if 'made' in sys.modules else 'none'); sys.stdout.flush();"
_VALUE = "import kubemend_prepared; print(kubemend_prepared.value);"


def _prepares(launcher: Running, body: str = "", *options: str, command: tuple[str, ...] = ("train.py", "-x")) -> None:
    launcher.write("made.py", _PREPARED.format(body=body))
    launcher.start("--prepare", "made:prepare", *options, python=command)


async def _restarted(launcher: Running, number: int = 2) -> int:
    launcher.order("sys.exit(3)")
    return await launcher.nth(number, "begin")


async def _ends(launcher: Running, show: str = _SHOW) -> str:
    launcher.order(f"{show} sys.exit(0)")
    assert await launcher.ended() == 0
    return launcher.stdout()


@pytest.mark.parametrize("command", [("train.py", "-x"), ("-m", "train", "-x"), ("-c", "import train", "-x")])
async def test_program_of_the_spare_finds_what_the_function_has_made(
    launcher: Running, command: tuple[str, ...]
) -> None:
    _prepares(launcher, command=command)
    await launcher.nth(1, "begin")
    await launcher.said("modules, and has called made:prepare")
    spare = await launcher.nth(1, "prepared")
    assert await _restarted(launcher) == spare
    shown = await _ends(launcher, _SHOW + _VALUE)
    assert shown.startswith(f"[{spare}][")
    assert shown.endswith(", '-x']\n"), "the function has the program's arguments"


async def test_function_of_a_file_elsewhere_is_called(launcher: Running) -> None:
    (launcher.folder / "below").mkdir()
    launcher.write("below/made.py", _PREPARED.format(body="pass"))
    launcher.start("--prepare", "below/made.py:prepare")
    spare = await launcher.nth(1, "prepared")
    await launcher.said("the spare is ready")
    assert await _restarted(launcher) == spare
    assert await _ends(launcher, _SHOW + "print('below' in str(sys.path));") == f"[{spare}]False\n"


async def test_function_of_the_script_gives_its_result_to_the_program(launcher: Running) -> None:
    """The script runs as ``__main__`` afterwards, so its own variables are others than those of the module."""
    launcher.write("train.py", f"def prepare():\n    return 'made'\nif __name__ == '__main__':\n{_indented(launcher)}")
    launcher.start("--prepare", "train:prepare")
    await launcher.nth(1, "begin")
    await launcher.said("and has called train:prepare")
    await _restarted(launcher)
    assert await _ends(launcher, _VALUE) == "made\n"


def _indented(launcher: Running) -> str:
    return "".join(f"    {line}\n" for line in (launcher.folder / "train.py").read_text().splitlines())


async def test_each_next_spare_prepares_again_and_a_cold_start_does_not(launcher: Running) -> None:
    _prepares(launcher)
    await launcher.nth(1, "prepared")
    await launcher.said("the spare is ready")
    await _restarted(launcher)
    spare = await launcher.nth(2, "prepared")
    await eventually.true(lambda: launcher.stderr().count("the spare is ready") == 2)
    os.kill(spare, signal.SIGKILL)
    await launcher.said("the spare is dropped: signal 9 killed it")
    program = await _restarted(launcher, 3)
    assert program != spare
    assert await _ends(launcher) == "none"
    assert program not in launcher.events("prepared")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ValueError('no\\ndata')", "ValueError: no data"),
        ("sys.exit(7)", "SystemExit: 7"),
        ("os._exit(9)", "it ended with exit code 9"),
        ("os.abort()", "signal 6 killed it"),
        ("signal.pause()", "the function has not ended within 1 s"),
        ("while True: pass", "the function has not ended within 1 s"),
        ("global handle; handle = open('nvidia0')", "nvidia0 open"),
        ("global handle; handle = open('nvidia0'); signal.pause()", "nvidia0"),
        ("global huge; huge = bytearray(b'1') * (128 << 20); signal.pause()", "MiB of --spare-memory"),
        ("global huge; huge = bytearray(b'1') * (128 << 20)", "MiB of --spare-memory"),
    ],
)
async def test_function_that_fails_leaves_a_spare_that_only_imports(launcher: Running, body: str, reason: str) -> None:
    (launcher.folder / "nvidia0").touch()
    limit = "1s" if "within" in reason else "60s"
    bounds = ("--prepare-timeout", limit, "--spare-memory", "100Mi", "--spare-devices", f"{launcher.folder}/nvidia")
    _prepares(launcher, body, *bounds)
    failed = await launcher.nth(1, "preparing")
    await launcher.said(f"{reason}, in made:prepare; the next spare only imports\n")
    await launcher.said("the spare is ready: it has imported ")
    spare = await launcher.spare(3)
    assert await _restarted(launcher) == spare != failed
    assert not alive(failed)
    assert await _ends(launcher) == "none"
    assert launcher.events("preparing") == [failed], "later spares do not try again"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("missing:prepare", "ModuleNotFoundError: No module named 'missing'"),
        ("made:missing", "AttributeError: module 'made' has no attribute 'missing'"),
    ],
)
async def test_function_that_is_missing_is_one_line(launcher: Running, function: str, reason: str) -> None:
    launcher.write("made.py", "")
    launcher.start("--prepare", function)
    await launcher.said("the spare is ready: it has imported ")
    spare = await launcher.spare(3)
    assert await _restarted(launcher) == spare
    await _ends(launcher)
    assert f"the spare is dropped: {reason}, in {function}; the next spare only imports\n" in launcher.stderr()
    assert launcher.stderr().count("the spare is dropped") == 1


async def test_fault_while_a_spare_prepares_makes_the_restart_cold(launcher: Running) -> None:
    """It does not wait for what may take longer than a cold start. The next spare prepares again."""
    _prepares(launcher, "while not os.path.exists('gate'): time.sleep(0.01)")
    spare = await launcher.nth(1, "preparing")
    program = await _restarted(launcher)
    assert program != spare
    assert not alive(spare)
    await launcher.said("the spare is dropped: the restart does not wait for made:prepare\n")
    launcher.write("gate", "")
    ready = await launcher.nth(1, "prepared")
    await launcher.said("and has called made:prepare")
    assert await _restarted(launcher, 3) == ready
    await _ends(launcher)


async def test_spare_that_is_killed_while_it_prepares_leaves_a_cold_restart(launcher: Running) -> None:
    _prepares(launcher, "signal.pause()")
    spare = await launcher.nth(1, "preparing")
    os.kill(spare, signal.SIGKILL)
    await launcher.said("the spare is dropped: signal 9 killed it\n")
    assert await _restarted(launcher) != spare
    await launcher.nth(2, "preparing")
    await _ends(launcher)


async def test_device_that_a_thread_of_the_function_opens_later_drops_the_spare(launcher: Running) -> None:
    (launcher.folder / "nvidia0").touch()
    opens = "import threading; threading.Thread(target=lambda: (wait(), handles.append(open('nvidia0')))).start()"
    launcher.write(
        "made.py",
        "import os, time\nhandles = []\ndef wait():\n    while not os.path.exists('gate'): time.sleep(0.01)\n"
        f"def prepare():\n    {opens}\n",
    )
    launcher.start("--prepare", "made:prepare", "--spare-devices", f"{launcher.folder}/nvidia")
    await launcher.said("and has called made:prepare")
    launcher.write("gate", "")
    await launcher.said("nvidia0, in made:prepare; the next spare only imports\n")
    await _restarted(launcher)
    await _ends(launcher)


@pytest.mark.parametrize("value", ["prepare", ":prepare", "made:", "1made:prepare", "a b:c", "a-b.py:c", "m:f()"])
def test_value_that_is_no_function_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"write module:function or file\.py:function"):
        kubemend_run.prepare_function(value)


async def test_function_in_the_module_that_is_the_program_is_refused(launcher: Running) -> None:
    launcher.start("--prepare", "train:prepare", python=["-m", "train"])
    assert await launcher.ended() == 2
    assert "--prepare train:prepare is in the program itself; move it to another module" in launcher.stderr()
