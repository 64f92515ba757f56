"""Locate kubectl: the one built with Kubernetes, or one in ``$PATH``."""

import functools
import os
import re
import shutil
import subprocess
from typing import Final

import pytest

from hack.devnode import kubernetes

_SECONDS: Final = 120.0
_NOTE: Final = re.compile(r"I\d{4} ")
"""klog's mark of lines that are not warnings: for example, that kubectl was throttled."""


@functools.cache
def program() -> str:
    """Return the path of kubectl. Fails the test where there is none, with the hint."""
    places = filter(None, (str(kubernetes.assets() or ""), os.environ.get("PATH")))
    found = shutil.which("kubectl", path=os.pathsep.join(places))
    if found is None:
        pytest.fail("no kubectl: run `make kubernetes`, or put one into $PATH", pytrace=False)
    return found


def run(*arguments: str) -> str:
    """Return kubectl's output; it must succeed without a warning."""
    made = subprocess.run([program(), *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False)
    complaints = [line for line in made.stderr.splitlines() if not _NOTE.match(line)]
    assert (made.returncode, complaints) == (0, []), (arguments, made.stderr)
    return made.stdout
