"""Build a fake C library, and share its state with the processes that load it.

The state is one memory-mapped file, whose structures are those of the library's header. Each change counts up the
state's ``generation`` and wakes clients that wait for that by a futex, so a client that waits or hangs sees it at once.
"""

import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from hack import compiler

_NUMBERS: Final = {
    "char": ctypes.c_char,
    "uint8_t": ctypes.c_uint8,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
}
_SYS_FUTEX: Final = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAKE: Final = 1
_EVERYONE: Final = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Header:
    """Hold a header's plain numbers (``#define``) and its structures, by name."""

    numbers: Mapping[str, int]
    structures: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "Header":
        """Read a header with naturally aligned fields, of numbers, texts, arrays and structures that precede."""
        text = re.sub(r"/\*.*?\*/", "", path.read_text("utf-8"), flags=re.DOTALL)
        numbers = {
            name: int(value, 0)
            for name, value in re.findall(r"^#define (\w+) (0x[0-9a-f]+|\d+)u?\s*$", text, flags=re.MULTILINE)
        }
        kinds: dict[str, Any] = dict(_NUMBERS)
        for name, body in re.findall(r"^struct (\w+) \{(.*?)^\};", text, flags=re.MULTILINE | re.DOTALL):
            fields = []
            for kind, field, sizes in re.findall(r"(?:struct )?(\w+) (\w+)((?:\[\w+\])*);", body):
                made = kinds[kind]
                for size in reversed(re.findall(r"\w+", sizes)):
                    made *= numbers[size] if size in numbers else int(size)
                fields.append((field, made))
            kinds[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
        return cls(numbers, kinds)


def build(source: Path, library: Path, *flags: str) -> Path:
    """Compile a library and return its path. Raises the errors of ``compiler.build``."""
    named = f"-Wl,-soname,{library.name}"
    return compiler.build(source, library, "-std=c11", "-fvisibility=hidden", named, *compiler.LIBRARY, *flags)


class Controlled:
    """Control a fake library by its state file, which is created if there is none.

    ``lib_dir`` is the library's directory. Use it as a context manager, or call ``close``. Every change is made under a
    file lock.
    """

    structure: ClassVar[Any]
    variable: ClassVar[str]
    """The environment variable that names the state file."""

    def __init__(self, state_path: Path, lib_dir: Path) -> None:
        """Raises ValueError for a file of another version."""
        self.state_path = state_path
        self.lib_dir = lib_dir
        self._fd = os.open(state_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.is_fresh = os.fstat(self._fd).st_size == 0
        if self.is_fresh:
            os.ftruncate(self._fd, ctypes.sizeof(self.structure))
        self._map = mmap.mmap(self._fd, 0)
        if len(self._map) != ctypes.sizeof(self.structure):
            raise ValueError(f"{state_path} is not a state file of this version; remove it")
        self._state = self.structure.from_buffer(self._map)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Clients keep their mappings."""
        del self._state
        self._map.close()
        os.close(self._fd)

    def env(self) -> dict[str, str]:
        """Return the environment that makes a child process load this library, before others."""
        path = os.environ.get("LD_LIBRARY_PATH")
        first = f"{self.lib_dir}:{path}" if path else str(self.lib_dir)
        return {"LD_LIBRARY_PATH": first, self.variable: str(self.state_path)}

    @contextlib.contextmanager
    def gpu(self, number: int) -> Iterator[Any]:
        """Provide the fake's data of a GPU, for changes that have no method; published when the block ends."""
        with self._change() as state:
            yield state.gpus[number]

    @contextlib.contextmanager
    def _change(self) -> Iterator[Any]:
        """Lock out other writers, provide the state, then wake all clients because it has changed."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield self._state
            self._state.generation += 1
            word = ctypes.c_void_p(ctypes.addressof(self._state) + self.structure.generation.offset)
            ctypes.CDLL(None).syscall(ctypes.c_long(_SYS_FUTEX[platform.machine()]), word, _FUTEX_WAKE, _EVERYONE)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
