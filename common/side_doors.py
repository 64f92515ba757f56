"""Import one module of a package without its ``__init__``, where that would load all the rest of the package too.

The packages that we use a small part of import everything they have, which an agent then keeps on every node.
"""

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def of(*packages: str) -> Iterator[dict[str, ModuleType]]:
    """Within the block, these packages are empty shells, so that importing a module below one loads that module alone.

    Name a package before those below it. Yields the shells by name; a package that has been imported already is left
    as it is. Afterwards the shells are gone: who imports a package then gets all of it, and the same modules below it.
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
