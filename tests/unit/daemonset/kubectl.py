"""kubectl, where there is one: the one built with Kubernetes, or one in ``$PATH``."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import yaml

from hack.devnode import kubernetes
from tests.unit.daemonset.manifests import Json

MISSING: Final = "no kubectl: run `make kubernetes`, or put one into $PATH"

_SECONDS: Final = 120.0
_NOTE: Final = re.compile(r"I\d{4} ")
"""How klog marks what is no warning: that kubectl waited because it asks too much, say."""
_PLACES = filter(None, (str(kubernetes.assets() or ""), os.environ.get("PATH")))
PROGRAM: Final = shutil.which("kubectl", path=os.pathsep.join(_PLACES))


def run(*arguments: str) -> str:
    """Return what kubectl prints; it must succeed and complain of nothing."""
    assert PROGRAM is not None
    made = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False)
    complaints = [line for line in made.stderr.splitlines() if not _NOTE.match(line)]
    assert (made.returncode, complaints) == (0, []), arguments
    return made.stdout


def render(directory: Path) -> list[Json]:
    """Return the objects of a kustomization."""
    return list(yaml.safe_load_all(run("kustomize", str(directory))))
