"""Compile the dev cluster's small programs and libraries in C."""

import os
import subprocess
from pathlib import Path
from typing import Final

LIBRARY: Final = ("-fPIC", "-shared")
_FLAGS: Final = ("-O2", "-Wall", "-Wextra", "-Werror")


def build(source: Path, target: Path, *flags: str) -> Path:
    """Compile a source with ``cc`` and return the target, which never exists in part.

    Raises subprocess.CalledProcessError when the compiler fails, FileNotFoundError when there is none.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    subprocess.run(["cc", *_FLAGS, str(source), "-o", str(fresh), *flags], check=True)
    return fresh.replace(target)
