"""The spare: imports what the program has imported, and nothing else; a restart without one is cold."""

import os
import signal
import textwrap
from pathlib import Path

import pytest

from launcher import kubemend_run
from tests import eventually
from tests.commands.launcher.running import DAEMONIZE, Running, alive, writing


async def fail_and_begin_again(launcher: Running, number: int = 2) -> int:
    """Have the program fail, wait until the next one has begun, and return its process."""
    launcher.order("sys.exit(3)")
    return await launcher.nth(number, "begin")


async def test_the_spare_becomes_the_trainer_with_its_modules_imported(launcher: Running) -> None:
    launcher.start("--spare-cpu", "20")
    first = await launcher.nth(1, "begin")
    spare = await launcher.spare()
    await launcher.spares_ready(1)
    assert await fail_and_begin_again(launcher) == spare
    assert launcher.events("slow")[:2] == [first, spare]
    assert launcher.events("begin") == [first, spare]
    await launcher.spares_ready(2)
    next_spare = launcher.events("later")[-1]
    assert await fail_and_begin_again(launcher, 3) == next_spare
    launcher.order("print(os.environ['KUBEMEND_RESTART_COUNT'], os.environ['KUBEMEND_RESTART_REASON']); sys.exit(0)")
    assert await launcher.ended() == 0
    assert launcher.stdout() == "2 Exit3\n"
    said = launcher.stderr().splitlines()
    assert all("kubemend-run: the spare is ready: it has imported " in each for each in said)


@pytest.mark.pythons
@pytest.mark.parametrize("command", [["train.py", "--lr", "1"], ["-u", "-m", "train"], ["-c", "import train"]])
async def test_a_program_of_the_spare_finds_what_it_finds_without_one(launcher: Running, command: list[str]) -> None:
    show = (
        "print(sys.argv, sys.path, sorted(os.environ), __name__, os.getpgrp() == os.getpid(),"
        " [each for each in os.listdir('/proc/self/fd')], signal.getsignal(15), file=open('found', 'a')); "
    )
    launcher.start(python=command)
    await launcher.nth(1, "begin")
    launcher.order("events.say('shown');" + show.replace("sorted(os.environ)", "sorted({*os.environ} - {1})"))
    await launcher.nth(1, "shown")
    spare = await launcher.spare()
    assert await fail_and_begin_again(launcher) == spare
    launcher.order(show + "sys.exit(0)")
    assert await launcher.ended() == 0
    first, second = (launcher.folder / "found").read_text().splitlines()
    assert second.replace("'KUBEMEND_RESTART_COUNT', 'KUBEMEND_RESTART_REASON', ", "") == first
    assert len(launcher.events("begin")) == 2


async def test_a_spare_knows_modules_of_an_earlier_launcher(launcher: Running) -> None:
    launcher.start()
    await launcher.nth(1, "begin")
    launcher.write("rare.py", writing("rare"))
    launcher.order("import rare")
    await launcher.nth(1, "rare")
    await launcher.spare()
    launcher.order("sys.exit(3)")
    await launcher.nth(2, "begin")
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0
    launcher.start()
    spare = await launcher.nth(len(launcher.events("rare")) + 1, "rare")
    assert await fail_and_begin_again(launcher, 4) == spare
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


@pytest.mark.pythons
async def test_a_spare_that_is_ready_imports_what_the_trainer_imports_later(launcher: Running) -> None:
    launcher.write("rare.py", writing("rare"))
    launcher.start()
    await launcher.nth(1, "begin")
    spare = await launcher.spare()
    await launcher.said("the spare is ready")
    launcher.order("import rare")
    assert await launcher.nth(2, "rare") == spare
    assert await fail_and_begin_again(launcher) == spare
    launcher.order("import rare; sys.exit(0)")
    assert await launcher.ended() == 0
    assert len(launcher.events("rare")) == 2


async def test_a_spare_imports_a_module_whose_import_took_longer_than_its_own_begin(launcher: Running) -> None:
    os.mkfifo(launcher.folder / "gate")
    waits = "if not os.path.exists('opened'): open('gate').read(), open('opened', 'w')\n"
    launcher.write("gated.py", "import events, os\n" + waits + "events.say('gated')\n")
    launcher.program("import gated")
    launcher.start()
    spare = await launcher.spare()
    await launcher.said("the spare is ready")
    (launcher.folder / "gate").write_text("")
    await launcher.nth(1, "begin")
    assert await launcher.nth(2, "gated") == spare
    assert await fail_and_begin_again(launcher) == spare
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


@pytest.mark.pythons
async def test_a_late_import_that_opens_a_device_is_left_out_of_the_next_spare(launcher: Running) -> None:
    device = launcher.folder / "nvidia0"
    device.touch()
    launcher.write("gpu.py", f"import events\nhandle = open({str(device)!r})\nevents.say('gpu')\n")
    launcher.start("--spare-devices", f"{launcher.folder}/nvidia")
    await launcher.nth(1, "begin")
    await launcher.said("the spare is ready")
    launcher.order("import gpu")
    await launcher.said(f"the spare is dropped: it holds {device} open, after the import of gpu")
    spare = await launcher.spare(3)
    assert await fail_and_begin_again(launcher) == spare
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_a_trainer_that_fails_while_its_spare_imports_more_is_replaced_by_it(launcher: Running) -> None:
    os.mkfifo(launcher.folder / "gate")
    waits = "if os.path.exists('more'): events.say('waits'), open('gate').read()\n"
    launcher.write("gated.py", "import events, os\n" + waits + "open('more', 'w').close()\n")
    launcher.start()
    await launcher.nth(1, "begin")
    await launcher.said("the spare is ready")
    launcher.order("import gated")
    spare = await launcher.nth(1, "waits")
    launcher.order("sys.exit(3)")
    (launcher.folder / "gate").write_text("")
    assert await launcher.nth(2, "begin") == spare
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_modules_of_forked_children_are_not_imported(launcher: Running) -> None:
    launcher.write("forked.py", writing("forked"))
    launcher.program("if os.fork() == 0:\n    import forked\n    os._exit(0)\nos.wait()")
    launcher.start()
    await launcher.nth(1, "begin")
    spare = await launcher.spare()
    assert await fail_and_begin_again(launcher) == spare
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0
    assert len(launcher.events("forked")) == 2
    assert spare not in launcher.events("forked")


async def test_a_spare_has_the_environment_that_the_trainer_had_at_the_import(launcher: Running) -> None:
    launcher.write("reads.py", "import events, os\nevents.say('read ' + os.environ['MODE'])\n")
    launcher.program("events.say('mode ' + os.environ.get('MODE', ''))\nos.environ['MODE'] = 'fast'\nimport reads")
    launcher.start()
    await launcher.nth(1, "begin")
    spare = await launcher.nth(2, "read fast")
    assert await fail_and_begin_again(launcher) == spare
    assert launcher.events("mode ")[1] == spare
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_an_import_that_opens_a_device_is_left_out_of_the_next_spare(launcher: Running) -> None:
    device = launcher.folder / "nvidia0"
    device.touch()
    launcher.write("gpu.py", f"import events\nevents.say('gpu')\nhandle = open({str(device)!r})\n")
    launcher.program("import gpu\nimport last")
    launcher.write("last.py", writing("last"))
    launcher.start("--spare-devices", f"/dev/none:{launcher.folder}/nvidia")
    await launcher.nth(1, "begin")
    await launcher.said(f"the spare is dropped: it holds {device} open, after the import of gpu")
    spare = await launcher.nth(2, "last")
    assert await fail_and_begin_again(launcher) == spare
    assert launcher.events("gpu")[2:] == [spare]
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_a_spare_counts_gpus_for_pytorch_without_opening_them(launcher: Running) -> None:
    """torch._inductor asks at its import. The program of the spare has PyTorch's own function again."""
    for number in range(2):
        (launcher.folder / f"nvidia{number}").touch()
    (launcher.folder / "torch").mkdir()
    launcher.write("torch/__init__.py", "import torch._C\n")
    launcher.write("torch/_C.py", "def _cuda_getDeviceCount():\n    return 7\n")
    launcher.write("torch/_inductor.py", "import events, torch._C\nevents.say(f'{torch._C._cuda_getDeviceCount()}')\n")
    launcher.start("--spare-devices", f"{launcher.folder}/nvidia")
    await launcher.nth(1, "begin")
    launcher.order("import torch._inductor")
    await launcher.nth(1, "7")
    spare = await launcher.nth(1, "2")
    assert await fail_and_begin_again(launcher) == spare
    launcher.order("import torch._C; print(torch._C._cuda_getDeviceCount(), sys.meta_path); sys.exit(0)")
    assert await launcher.ended() == 0
    assert launcher.stdout().startswith("7 ")
    assert "GpuCount" not in launcher.stdout()


async def test_a_changed_module_makes_the_restart_cold(launcher: Running) -> None:
    launcher.start()
    await launcher.nth(1, "begin")
    spare = await launcher.spare()
    launcher.write("slow.py", writing("slow") + writing("changed"))
    program = await fail_and_begin_again(launcher)
    assert program != spare
    assert launcher.events("changed") == [program]
    assert f"the spare is dropped: {launcher.folder}/slow.py has changed" in launcher.stderr()
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_a_spare_that_still_imports_goes_when_that_import_ends(launcher: Running) -> None:
    os.mkfifo(launcher.folder / "gate")
    launcher.write(
        "gated.py", "import events\nif 'begin' in open('events').read(): events.say('gated'), open('gate').read()\n"
    )
    launcher.write("last.py", writing("last"))
    launcher.program("import gated\nimport last")
    launcher.start()
    await launcher.nth(1, "begin")
    spare = await launcher.nth(1, "gated")
    launcher.order("sys.exit(3)")
    (launcher.folder / "gate").write_text("")
    assert await launcher.nth(2, "begin") == spare
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0
    assert launcher.events("last")[1:] == [spare]


async def test_a_spare_that_is_killed_leaves_a_cold_restart(launcher: Running) -> None:
    launcher.start()
    await launcher.nth(1, "begin")
    spare = await launcher.spare()
    os.kill(spare, signal.SIGKILL)
    await launcher.said("the spare is dropped: signal 9 killed it")
    assert await fail_and_begin_again(launcher) not in (0, spare)
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_a_spare_with_too_much_memory_is_dropped(launcher: Running) -> None:
    launcher.write("huge.py", "if 'begin' in open('events').read():\n    huge = bytearray(b'1') * (64 << 20)\n")
    launcher.program("import huge")
    launcher.start("--spare-memory", "50Mi")
    await launcher.nth(1, "begin")
    await launcher.said("MiB, more than the 50 MiB of --spare-memory")
    await fail_and_begin_again(launcher)
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


@pytest.mark.parametrize("ends", ["by itself", "by the launcher"])
async def test_what_the_imports_of_a_dropped_spare_have_started_is_killed(launcher: Running, ends: str) -> None:
    """A process in a group of its own could use memory and devices next to the program."""
    device = launcher.folder / "nvidia0"
    device.touch()
    helper = f"import events, time; handle = open({str(device)!r}); events.say('daemon'); print(); time.sleep(600)"
    start = f"subprocess.Popen([sys.executable, '-c', {helper!r}], start_new_session=True, stdout=subprocess.PIPE)"
    launcher.write(
        "helped.py",
        f"import os, subprocess, sys\nif 'begin' in open('events').read():\n    {start}.stdout.readline()\n",
    )
    launcher.program("import helped")
    devices = launcher.folder if ends == "by the launcher" else "/none"
    launcher.start("--spare-devices", f"{devices}/nvidia")
    await launcher.nth(1, "begin")
    started = await launcher.nth(1, "daemon")
    if ends == "by itself":
        await launcher.said("the spare is ready")
        os.kill(await launcher.spare(), signal.SIGKILL)
    await launcher.said("the spare is dropped: ")
    await eventually.true(lambda: not alive(started))
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_daemon_of_a_spare_that_uses_a_device_is_killed_with_it(launcher: Running) -> None:
    (launcher.folder / "nvidia0").touch()
    opens = DAEMONIZE.replace("os.close(lock.fileno())", "handle = open('nvidia0')")
    head = "import events, os, signal\nif 'begin' in open('events').read():\n"
    launcher.write("forks.py", head + textwrap.indent(opens, "    "))
    launcher.program("import forks")
    launcher.start("--spare-devices", f"{launcher.folder}/nvidia")
    daemon = await launcher.nth(1, "daemon")
    await launcher.said(f"the spare is dropped: it uses {launcher.folder}/nvidia0")
    await eventually.true(lambda: not alive(daemon))
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


_HELPER = "import events, signal; events.say('daemon'); print(flush=True); signal.pause()"
_CHILD = f"subprocess.Popen([sys.executable, '-c', {_HELPER!r}], stdout=subprocess.PIPE).stdout.readline()\n"


@pytest.mark.pythons
@pytest.mark.parametrize(
    "starts",
    [
        DAEMONIZE.replace("os.close(lock.fileno())", "pass"),
        DAEMONIZE.replace("os.close(lock.fileno())", "os.closerange(0, 4096)"),
        _CHILD,
    ],
    ids=["daemon", "daemon-without-files", "child"],
)
async def test_what_a_spare_that_ends_has_forked_is_killed_and_what_the_program_has_forked_is_not(
    launcher: Running, starts: str
) -> None:
    """Both daemons are orphans, so children of the launcher. The spare's has its files open, or its first variables."""
    os.mkfifo(launcher.folder / "gate")
    ends = starts + "open('gate').read()\nos._exit(9)\n"
    head = "import events, os, signal, subprocess, sys\nif 'begin' in open('events').read():\n"
    launcher.write("forks.py", head + textwrap.indent(ends, "    "))
    launcher.program("import forks")
    launcher.start()
    await launcher.nth(1, "begin")
    forked = await launcher.nth(1, "daemon")
    launcher.order(DAEMONIZE)
    own = await launcher.nth(2, "daemon")
    assert alive(forked)
    (launcher.folder / "gate").write_text("")
    await launcher.said("the spare is dropped: it ended with exit code 9, after the import of forks")
    await eventually.true(lambda: not alive(forked))
    assert alive(own)
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


@pytest.mark.parametrize(
    ("trap", "text"),
    [
        ("os.chdir('/')", "the module changes the working directory, after the import of trap"),
        ("sys.argv = ['-']", "the module changes sys.argv, after the import of trap"),
        ("os._exit(9)", "it ended with exit code 9, after the import of trap"),
        ("os.closerange(3, 4096)", "the spare is dropped: "),
        ("while True: signal.pause()", "the import has not ended within 3 s, after the import of trap"),
        (
            "sys.path.insert(0, '/nowhere')",
            "the module changes sys.path other than at its end, after the import of trap",
        ),
    ],
)
async def test_an_import_that_breaks_the_spare_leaves_a_restart(launcher: Running, trap: str, text: str) -> None:
    launcher.write("trap.py", f"import os, signal, sys\nif 'begin' in open('events').read():\n    {trap}\n")
    launcher.program("import trap")
    launcher.start("--spare-timeout", "3s" if "while" in trap else "1m")
    await launcher.nth(1, "begin")
    await launcher.said(text)
    launcher.write("trap.py", "")
    await fail_and_begin_again(launcher)
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_an_interpreter_without_sitecustomize_is_restarted_cold(launcher: Running) -> None:
    launcher.start(python=["-S", "train.py"])
    await launcher.nth(1, "begin")
    await fail_and_begin_again(launcher)
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0
    assert "no spare: python -S reads no sitecustomize" in launcher.stderr()


async def test_the_spare_is_killed_before_the_trainer_when_memory_is_short(launcher: Running) -> None:
    launcher.start()
    await launcher.nth(1, "begin")
    spare = await launcher.spare()
    own = _oom_score_adjustment(launcher.pid)
    await eventually.true(lambda: _oom_score_adjustment(spare) == 1000)
    assert await fail_and_begin_again(launcher) == spare
    await eventually.true(lambda: _oom_score_adjustment(spare) == own)
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


_ONCE = "if 'begin' in open('events').read(): raise ValueError('no\\ndata')\n"
"""The begin of a module whose import fails in each spare."""


@pytest.mark.pythons
async def test_import_that_fails_only_in_the_spare_is_left_out_with_what_it_had_begun(launcher: Running) -> None:
    launcher.write("registry.py", "import events\nMODELS = []\n" + writing("registry"))
    launcher.write("models.py", "import registry, later\nregistry.MODELS.append('llama')\n" + _ONCE)
    launcher.program("import models\nimport registry\nevents.say(f'{registry.MODELS}')")
    launcher.start()
    first = await launcher.nth(1, "begin")
    await launcher.said("dropped: the import fails in the spare: ValueError: no data, after the import of models\n")
    await launcher.said("the spare is ready")
    spare = launcher.events("registry")[-1]
    launcher.write("models.py", "import registry\nregistry.MODELS.append('llama')\n")
    assert await fail_and_begin_again(launcher) == spare
    assert launcher.events("['llama']") == [first, spare]
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_import_whose_failure_a_module_hides_in_the_spare_is_left_out_with_that_module(launcher: Running) -> None:
    launcher.write("fast.py", _ONCE)
    launcher.write("models.py", "try:\n    import fast\n    KERNEL = 'fast'\nexcept ValueError:\n    KERNEL = 'slow'\n")
    launcher.program("import models\nevents.say(models.KERNEL)")
    launcher.start()
    first = await launcher.nth(1, "begin")
    await launcher.said("the import of fast fails in the spare, but not in the program, after the import of models\n")
    await launcher.said("the spare is ready")
    assert launcher.stderr().count("the spare is dropped") == 1
    launcher.write("fast.py", "")
    spare = launcher.events("later")[-1]
    assert await fail_and_begin_again(launcher) == spare
    assert launcher.events("fast") == [first, spare]
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_import_that_fails_in_the_program_too_does_not_cost_the_spare(launcher: Running) -> None:
    launcher.write("broken.py", "raise ValueError\n")
    launcher.write("models.py", "try:\n    import broken\nexcept ValueError:\n    pass\n")
    launcher.program("import models")
    launcher.start()
    await launcher.nth(1, "begin")
    await launcher.said("the spare is ready")
    assert await fail_and_begin_again(launcher) == launcher.events("later")[1]
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0
    assert "dropped" not in launcher.stderr()


async def test_module_that_no_longer_exists_does_not_cost_the_spare(launcher: Running) -> None:
    launcher.write("gone.py", "import os\nos.unlink(__file__)\n")
    launcher.program("import gone")
    launcher.start()
    await launcher.nth(1, "begin")
    await launcher.said("the spare is ready")
    assert "dropped" not in launcher.stderr()
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


_AROUND = "import events, os, sys, __main__\nevents.say(f'{name} {{sys.argv}} {{__main__.__file__}} {{os.getcwd()}}')\n"
"""A module that writes what an import can see of the program."""


@pytest.mark.parametrize("command", [("train.py", "--lr", "1"), ("-m", "train", "--lr", "1")])
async def test_import_in_the_spare_finds_the_programs_arguments_file_and_folder(
    launcher: Running, command: tuple[str, ...]
) -> None:
    _write_events_to_one_file(launcher)
    (launcher.folder / "job").mkdir()
    for name in ("before", "after"):
        launcher.write(f"{name}.py", _AROUND.format(name=name))
    launcher.write("job/config.py", writing("job"))
    launcher.write("config.py", writing("wrong"))
    launcher.program(
        "import before\nsys.argv.append('--more')\nsys.path.insert(0, '')\nos.chdir('job')\n"
        "import after, config\nos.chdir('..')"
    )
    launcher.start(python=command)
    first = await launcher.nth(1, "begin")
    await launcher.said("the spare is ready")
    spare = launcher.events("job")[1]
    file, arguments = f"{launcher.folder}/train.py", ["--lr", "1"]
    for name, more, folder in (("before", [], ""), ("after", ["--more"], "/job")):
        shown = f"{name} {[_shown(command, file), *arguments, *more]} {file} {launcher.folder}{folder}"
        assert launcher.events(shown) == [first, spare]
    assert launcher.events("wrong") == []
    assert await fail_and_begin_again(launcher) == spare
    launcher.order("print(sys.argv, __file__, os.getcwd()); sys.exit(0)")
    assert await launcher.ended() == 0
    shown = f"{[_shown(command, file), *arguments, '--more']} {file} {launcher.folder}\n"
    assert launcher.stdout() == shown


def _write_events_to_one_file(launcher: Running) -> None:
    text = (launcher.folder / "events.py").read_text()
    launcher.write("events.py", text.replace('"events"', repr(str(launcher.folder / "events"))))


def _shown(command: tuple[str, ...], file: str) -> str:
    return file if command[0] == "-m" else command[0]


async def test_spare_whose_program_does_not_change_its_folder_and_arguments_begins_with_the_launchers(
    launcher: Running,
) -> None:
    _write_events_to_one_file(launcher)
    launcher.write("late.py", "import events, os\nevents.say(f'late {os.getcwd()}')\n")
    launcher.program(
        "if not os.path.exists('again'):\n    os.mkdir('again'); os.chdir('again'); sys.argv[0] = 'x'\n"
        "import late\nos.chdir(os.environ['PWD'])"
    )
    launcher.environ["PWD"] = str(launcher.folder)
    launcher.start()
    await launcher.nth(1, "begin")
    await launcher.said("the spare is ready")
    spare = launcher.events(f"late {launcher.folder}/again")[1]
    assert await fail_and_begin_again(launcher) == spare
    launcher.order("print(sys.argv, os.getcwd()); sys.exit(0)")
    assert await launcher.ended() == 0
    assert launcher.stdout() == f"['train.py'] {launcher.folder}\n"


async def test_spare_without_the_programs_working_directory_is_dropped(launcher: Running) -> None:
    launcher.write("late.py", "")
    launcher.program("os.mkdir('gone'); os.chdir('gone')\nimport late\nos.chdir('..'); os.rmdir('gone')")
    launcher.start()
    await launcher.said("the spare is dropped: it cannot change its working directory: FileNotFoundError")
    await fail_and_begin_again(launcher)
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_module_that_adds_to_a_variable_of_the_program_is_left_out_of_the_next_spare(launcher: Running) -> None:
    launcher.write("adds.py", "import os\nos.environ['FLAGS'] += ' --more'\nos.environ['OWN'] = 'own'\n")
    launcher.program(
        "os.environ['FLAGS'] = '--user'\nimport adds\nevents.say('flags ' + os.environ['FLAGS'] + os.environ['OWN'])"
    )
    launcher.start()
    first = await launcher.nth(1, "begin")
    await launcher.said(
        "the module changes the variable FLAGS, which the program sets before, after the import of adds\n"
    )
    await launcher.said("the spare is ready")
    spare = launcher.events("later")[-1]
    assert await fail_and_begin_again(launcher) == spare
    assert launcher.events("flags --user --moreown") == [first, spare]
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_recorder_asked_by_the_top_level_of_a_script_finds_nothing(launcher: Running) -> None:
    launcher.write("asks.py", "import sys\nassert sys.meta_path[0].find_spec('json', None) is None\nprint('asked')\n")
    launcher.start(python=["asks.py"])
    assert await launcher.ended() == 0
    assert launcher.stdout() == "asked\n"


async def test_what_the_imports_have_started_is_as_safe_as_the_program_from_its_begin(launcher: Running) -> None:
    """A worker that an import starts belongs to the program after a restart."""
    launcher.write(
        "works.py",
        "import subprocess, sys\nWORKER = subprocess.Popen(\n"
        "    [sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=subprocess.PIPE, start_new_session=True)\n",
    )
    adjustments = "[open(f'/proc/{each}/oom_score_adj').read().strip() for each in (os.getpid(), works.WORKER.pid)]"
    launcher.program(f"import works\nevents.say(str({adjustments}))")
    launcher.start()
    first = await launcher.nth(1, "begin")
    await launcher.said("the spare is ready")
    spare = launcher.events("later")[1]
    own = str(_oom_score_adjustment(launcher.pid))
    assert await fail_and_begin_again(launcher) == spare
    assert launcher.events(str([own, own])) == [first, spare]
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_program_that_fails_at_once_from_a_spare_is_started_cold_and_after_the_second_time_always(
    launcher: Running,
) -> None:
    """A module may need what the program has set before, and what a spare cannot know."""
    launcher.write("data.py", "import events\nMODE = getattr(events, 'mode', None)\n")
    launcher.program("events.mode = 'spawn'\nimport data\nif data.MODE is None:\n    sys.exit(4)")
    launcher.start("--healthy-after", "4s", "--initial-backoff", "10ms")
    await launcher.nth(1, "begin")
    await launcher.said("the spare is ready")
    await fail_and_begin_again(launcher)
    await launcher.said("s after it began from a spare; none until a cold start has run 4 s. If a module")
    await launcher.spares_ready(2)
    program, spare = (_started(launcher.events(name)[-1]) for name in ("begin", "later"))
    assert spare - program >= 2 * os.sysconf("SC_CLK_TCK"), "the spare came after a healthy run"
    await fail_and_begin_again(launcher, 3)
    assert "s after it began from a spare; this launcher starts no more. If a module needs" in launcher.stderr()
    cold = launcher.events("begin")
    assert [each in cold for each in launcher.events("slow")] == [True, False, True, False, True]
    launcher.order("sys.exit(4)")
    await launcher.nth(4, "begin")
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_fourth_program_that_fails_young_is_followed_by_a_cold_start(launcher: Running) -> None:
    """It may fail by what its spare lacked, later than in its imports."""
    launcher.start("--healthy-after", "1h", "--initial-backoff", "10ms")
    await launcher.nth(1, "begin")
    for number in range(1, 4):
        await launcher.spares_ready(number)
        spare = launcher.events("later")[-1]
        assert await fail_and_begin_again(launcher, number + 1) == spare
    await launcher.spares_ready(4)
    spare = launcher.events("later")[-1]
    assert await fail_and_begin_again(launcher, 5) != spare
    assert "the spare is dropped: the program failed " in launcher.stderr()
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


def _started(pid: int) -> int:
    """Return when a process started, in ticks of the clock."""
    process = kubemend_run.process_of(pid)
    assert process is not None
    return process.started


async def test_python_that_was_built_for_an_older_c_library_has_a_spare(launcher: Running) -> None:
    """As those of conda and uv, which have no function for files in memory."""
    launcher.start(changed="del kubemend_run.os.memfd_create")
    await launcher.nth(1, "begin")
    spare = await launcher.spare()
    assert await fail_and_begin_again(launcher) == spare
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_the_spare_ends_with_the_launcher(launcher: Running) -> None:
    launcher.start()
    await launcher.nth(1, "begin")
    spare = await launcher.spare()
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0
    await eventually.true(lambda: not alive(spare))


def _oom_score_adjustment(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())
