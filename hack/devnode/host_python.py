"""Let containers of the dev cluster run the node's own Python: a real image would contain it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_LIBRARIES: Final = ("/usr", "/lib", "/lib64")


def shared(python: Path, *others: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes of a pod, and the mounts of a container, with this Python and other paths of the node."""
    paths = _paths(python, others)
    named = [(f"host-{number}", path) for number, path in enumerate(paths)]
    volumes = [{"name": name, "hostPath": {"path": str(path.resolve())}} for name, path in named]
    return volumes, [{"name": name, "mountPath": str(path), "readOnly": True} for name, path in named]


def _paths(python: Path, others: Sequence[Path]) -> Sequence[Path]:
    wanted = [Path(each) for each in _LIBRARIES if Path(each).is_dir()]
    for path in (Path(sys.base_prefix), python.parent.parent, *others):
        if not any(path.is_relative_to(each) for each in wanted):
            wanted.append(path)
    return wanted
