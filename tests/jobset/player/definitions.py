"""Load the shipped definitions of the scenarios' resources."""

import functools
from pathlib import Path
from typing import Any, Final

import yaml

_DAEMONSET: Final = Path(__file__).parents[3] / "daemonset"
_FILES: Final = (_DAEMONSET / "jobset" / "crd.yaml", _DAEMONSET / "crds" / "restarts.yaml")


@functools.cache
def definitions() -> tuple[dict[str, Any], ...]:
    """Return the CustomResourceDefinitions of JobSets and Restarts."""
    return tuple(yaml.safe_load(path.read_text()) for path in _FILES)
