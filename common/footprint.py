"""Import one module of a package without its ``__init__`` where that would load the rest of the package.

Packages of which kubemend uses a small part import everything they have, which costs an agent memory on every node.
"""

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def import_without_package(*packages: str) -> Iterator[dict[str, ModuleType]]:
    """Replace these packages by empty shells within the block, so that importing a module below one loads only that
    module.

    Name a package before those below it. Yields the shells by name; a package that has already been imported is left
    unchanged. The shells are removed afterwards: a later import of a package loads all of it, with the same modules
    below.
    """
    with _ONE_AT_A_TIME:
        shells: dict[str, ModuleType] = {}
        try:
            for name in packages:
                if name not in sys.modules:
                    sys.modules[name] = shells[name] = _shell(name)
            yield shells
        finally:
            for name in shells:
                del sys.modules[name]


def _shell(name: str) -> ModuleType:
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return importlib.util.module_from_spec(spec)
