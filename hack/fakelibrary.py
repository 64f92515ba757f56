"""Build a fake C library, and share its state with the processes that load it.

The state is one memory-mapped file, whose structures are those of the library's header. Each change counts up the
state's ``generation`` and wakes who waits for that by a futex, so a client that waits or hangs sees it at once.
"""

import ctypes
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

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


def environment(directory: Path) -> dict[str, str]:
    """Return the variable that makes a child process load the libraries of a directory, before others."""
    path = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": f"{directory}:{path}" if path else str(directory)}


def publish(state: Any) -> None:
    """Tell all clients that the state has changed."""
    state.generation += 1
    word = ctypes.c_void_p(ctypes.addressof(state) + type(state).generation.offset)
    ctypes.CDLL(None).syscall(ctypes.c_long(_SYS_FUTEX[platform.machine()]), word, _FUTEX_WAKE, _EVERYONE)
