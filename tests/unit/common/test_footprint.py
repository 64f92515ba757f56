"""Importing libraries without their unused parts."""

import asyncio
import contextlib
import ctypes
import gc
import importlib
import mimetypes
import ssl
import subprocess
import sys
from asyncio import sslproto
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubemend.common import footprint
from tests.fakes.certificates import Authority


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose ``__init__`` loads a heavy module, and has a light one."""
    name = "a_package_of_the_tests"
    below = tmp_path / name
    below.mkdir()
    (below / "__init__.py").write_text(f"from {name} import heavy\n")
    (below / "heavy.py").write_text("")
    (below / "light.py").write_text("VALUE = object()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for loaded in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[loaded]


def loaded(package: str) -> set[str]:
    return {name for name in sys.modules if name.partition(".")[0] == package}


def test_a_module_is_loaded_without_the_rest_of_its_package(package: str) -> None:
    with footprint.import_without_package(package) as shells:
        light = importlib.import_module(f"{package}.light")
        assert shells[package].light is light
    assert loaded(package) == {f"{package}.light"}


def test_later_import_loads_the_whole_package_and_same_module(package: str) -> None:
    with footprint.import_without_package(package):
        light = importlib.import_module(f"{package}.light")
    assert importlib.import_module(package).heavy
    assert importlib.import_module(f"{package}.light") is light


def test_loaded_package_is_unchanged(package: str) -> None:
    whole = importlib.import_module(package)
    with footprint.import_without_package(package) as shells:
        assert shells == {}
        assert sys.modules[package] is whole
    assert sys.modules[package] is whole


def test_missing_module_leaves_nothing_behind(package: str) -> None:
    with pytest.raises(ModuleNotFoundError), footprint.import_without_package(package):
        importlib.import_module(f"{package}.missing")
    assert loaded(package) == set()


def test_missing_package_is_named(package: str) -> None:
    with (
        pytest.raises(ModuleNotFoundError, match="no_such_package"),
        footprint.import_without_package(package, "no_such_package"),
    ):
        pass
    assert loaded(package) == set()


def test_contexts_within_the_block_trust_no_authority_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "authorities.pem").write_bytes(Authority.named("a").pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authorities.pem"))
    with footprint.without_system_authorities():
        within = ssl.create_default_context()
    after = ssl.create_default_context()
    assert (within.cert_store_stats()["x509_ca"], after.cert_store_stats()["x509_ca"]) == (0, 1)
    assert within.verify_mode is ssl.CERT_REQUIRED


def test_mime_types_of_the_system_are_not_read_within_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mime.types").write_text("x-of/a-test xofatest\n")
    monkeypatch.setattr(mimetypes, "knownfiles", [str(tmp_path / "mime.types")])
    found = []
    for block in (footprint.without_system_mime_types(), contextlib.nullcontext()):
        monkeypatch.setattr(mimetypes, "_db", None)
        monkeypatch.setattr(mimetypes, "inited", False)
        with block:
            mimetypes.init()
        found.append(mimetypes.guess_type("a.xofatest")[0])
    assert found == [None, "x-of/a-test"]


async def test_tls_connections_have_small_buffers_after_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", 2**18)
    footprint.use_small_tls_buffers()
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()
    connection: Any = sslproto.SSLProtocol(loop, asyncio.Protocol(), ssl.create_default_context(), waiter)
    assert len(connection.get_buffer(-1)) == 2**15
    connection._app_transport._closed = True  # it was never connected


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_within_the_block(enabled: bool) -> None:
    was_enabled = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with contextlib.suppress(ZeroDivisionError), footprint.without_collection():
            within = gc.isenabled()
            raise ZeroDivisionError
        assert (within, gc.isenabled()) == (False, enabled)
    finally:
        (gc.enable if was_enabled else gc.disable)()


_FREES_MUCH = """
import mmap, pathlib
from kubemend.common import footprint
def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
kept, freed = [], []
for _ in range(2000):
    freed.append(bytes(10_000))
    kept.append(bytes(1000))
del freed
before = resident()
footprint.return_free_memory()
print(before - resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc has malloc_trim")
def test_free_memory_is_returned_to_the_kernel() -> None:
    returned = subprocess.check_output([sys.executable, "-c", _FREES_MUCH], text=True)
    assert int(returned) > 10_000_000


_THREADS_ALLOCATE = """
import ctypes, sys, threading
from kubemend.common import footprint
if sys.argv[1] == "one":
    footprint.use_one_malloc_arena()
libc = ctypes.CDLL(None)
for _ in range(4):
    threading.Thread(target=libc.malloc, args=(1000,)).start()
libc.malloc_stats()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_stats"), reason="only glibc has arenas")
def test_threads_allocate_from_one_arena() -> None:
    arenas = {}
    for count in ("many", "one"):
        done = subprocess.run(
            [sys.executable, "-c", _THREADS_ALLOCATE, count], capture_output=True, text=True, check=True
        )
        arenas[count] = done.stderr.count("\nArena ") + done.stderr.startswith("Arena ")
    assert arenas["one"] == 1 < arenas["many"]
