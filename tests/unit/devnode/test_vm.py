"""The files of the virtual machine: its modules' order, its command's script and environment."""

import subprocess
from pathlib import Path

from hack.vm import guest, machine

DEPENDENCIES = """\
kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/fs/mbcache.ko kernel/lib/crc16.ko
kernel/fs/jbd2/jbd2.ko: kernel/lib/crc16.ko
kernel/fs/mbcache.ko:
kernel/lib/crc16.ko:
kernel/fs/overlayfs/overlay.ko:
"""


def test_modules_are_loaded_after_those_that_they_need_and_once() -> None:
    order = [Path(path).stem for path in machine.load_order(DEPENDENCIES, ["jbd2", "ext4", "overlay", "built_in"])]

    assert sorted(order) == ["crc16", "ext4", "jbd2", "mbcache", "overlay"]
    assert order.index("crc16") < order.index("jbd2") < order.index("ext4")


def test_script_runs_the_command_in_its_directory_and_reports_its_exit_status(tmp_path: Path) -> None:
    directory = tmp_path / "two words"
    directory.mkdir()
    work = guest.Work(("sh", "-c", 'echo "$GREETING" > said; exit 3'), {"GREETING": "it's me"}, directory)
    (script,) = (text for path, text in guest.files(work).items() if path.endswith("/command"))
    commands = script[script.index("export") :].replace(guest.STATUS, str(tmp_path / "status"))

    subprocess.run(("sh", "-eu", "-c", f"set +e; {commands}"), check=True, timeout=60)

    assert (directory / "said").read_text() == "it's me\n"
    assert (tmp_path / "status").read_text() == "3\n"


def test_command_gets_the_search_path_and_the_settings_of_the_dev_node_and_nothing_else() -> None:
    host = {"PATH": "/bin", "HOME": "/root", "KUBEMEND_DEV_RUNTIME": "cri-o", "VIRTUAL_ENV": "/v", "SECRET": "x"}

    assert guest.inherited(host) == {"PATH": "/bin", "HOME": "/root", "KUBEMEND_DEV_RUNTIME": "cri-o"}
