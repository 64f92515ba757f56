"""Import libraries without the parts that are not used: they cost memory on every node, and time at each start.

Packages of which kubemend uses a small part import everything they have.
"""

import contextlib
import ctypes
import gc
import importlib.util
import ssl
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Final

_M_ARENA_MAX: Final = -8  # malloc.h of glibc

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


@contextlib.contextmanager
def without_system_authorities() -> Iterator[None]:
    """Have TLS contexts that are made within the block trust no authority, instead of the system's.

    aiohttp makes two when it is imported, and loads the system's authorities into both: 2 MB, and 40 ms. kubemend
    trusts the API server's own authority, in a context of its own.
    """
    with _ONE_AT_A_TIME:
        loads = ssl.SSLContext.set_default_verify_paths
        ssl.SSLContext.set_default_verify_paths = lambda _: None  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            ssl.SSLContext.set_default_verify_paths = loads  # type: ignore[method-assign]


@contextlib.contextmanager
def without_system_mime_types() -> Iterator[None]:
    """Have ``mimetypes`` not read the system's files within the block: 0.4 MB where there are any.

    aiohttp has it read them when it is imported. kubemend serves no files.
    """
    import mimetypes  # not at the start of every command

    with _ONE_AT_A_TIME:
        known = mimetypes.knownfiles
        mimetypes.knownfiles = []
        try:
            yield
        finally:
            mimetypes.knownfiles = known


def use_small_tls_buffers() -> None:
    """Have asyncio receive TLS through 32 KiB for each connection from now on, not 256: 1 to 2 MB for an agent.

    It has five to nine connections to the API server. A TLS record has at most 16 KiB.
    """
    from asyncio import sslproto  # not at the start of every command

    sslproto.SSLProtocol.max_size = 2**15


def use_one_malloc_arena() -> None:
    """Have all threads allocate from one arena of glibc from now on: 1.5 MB less in an agent, which has ten threads.

    Each thread would get an arena of its own, most of it unused. Python's lock serializes almost all allocations.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # other C libraries have none
        mallopt(_M_ARENA_MAX, 1)


def return_free_memory() -> None:
    """Return what glibc holds free to the kernel: 2.7 MB in an agent that has started, where it takes 0.5 ms."""
    if (malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # other C libraries have none
        malloc_trim(0)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Turn the garbage collector off within the block. Imports make no garbage, and looking for it takes 40 ms."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _shell(name: str) -> ModuleType:
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return importlib.util.module_from_spec(spec)
