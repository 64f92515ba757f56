"""Build pods whose trainer is a Python program that kubemend's launcher runs, and find its process."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hack.devnode import host_python, trainer
from launcher import kubemend_run

LAUNCHER: Final = Path(kubemend_run.__file__)
CACHE: Final = kubemend_run.CACHE_FOLDER
TRAIN: Final = f"""
import json, os, time
os.chdir("{trainer.CHECKPOINTS}")
step = int(open("step").read()) if os.path.exists("step") else 0
print("resumed from step", step, os.environ.get("KUBEMEND_RESTART_COUNT", "0"), flush=True)
while True:
    step += 1
    with open("step.new", "w") as file:
        file.write(str(step))
    os.replace("step.new", "step")
    if not os.path.exists("hang"):
        open("beat", "w").close()
    time.sleep(0.05)
"""


def manifest(
    name: str, *, node: str, options: Sequence[str] = ("--spare-after", "1"), program: str = TRAIN, **fields: Any
) -> dict[str, Any]:
    """Return the pod; ``options`` are the launcher's. The container uses the node's Python."""
    python = Path(sys.executable)
    run = f"exec {python} {LAUNCHER} {' '.join(options)} -- {python} {trainer.CHECKPOINTS}/train.py"
    script = f"cat > {trainer.CHECKPOINTS}/train.py <<'END'\n{program}\nEND\n{run}"
    made = trainer.manifest(name, node=node, script=script, **fields)
    volumes, mounts = host_python.shared(python, LAUNCHER.parent)
    made["spec"]["volumes"] += [*volumes, {"name": "kubemend-cache", "emptyDir": {}}]
    (container,) = made["spec"]["containers"]
    container["volumeMounts"] += [*mounts, {"name": "kubemend-cache", "mountPath": CACHE}]
    return made


def programs(main: int) -> list[int]:
    """Return a launcher's programs: unlike itself and the spare, they have changed their directory."""
    below = kubemend_run.descendants(kubemend_run.processes(), main)
    return [each.pid for each in below if _directory(each.pid) == trainer.CHECKPOINTS]


def _directory(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""
