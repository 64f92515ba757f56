"""Run a kernel's PTX text, one thread after the other: what the assembler cannot check is whether it computes right.

It knows the instructions that kubemend's kernels use, and raises KeyError for others. A warp's matrix instructions are
run once for the whole warp.
"""

import ctypes
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_FMAF = ctypes.CDLL("libm.so.6").fmaf
_FMAF.restype = ctypes.c_float
_FMAF.argtypes = [ctypes.c_float] * 3

_WARP = 32
_TILE = 16
_INTEGERS: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x // y,
    "rem": lambda x, y: x % y,
    "xor": lambda x, y: x ^ y,
    "and": lambda x, y: x & y,
    "shl": lambda x, y: x << y,
    "shr": lambda x, y: x >> y,
}
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "ge": lambda x, y: x >= y,
}

Tile = list[list[float]]


def to_float(bits: int) -> float:
    """Return the single-precision number with these bits."""
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def to_bits(number: float, form: str = "<f") -> int:
    """Return the bits of a number in single precision, or of another form."""
    return int.from_bytes(struct.pack(form, number), "little")


@dataclass
class Machine:
    """The device: ``memory`` begins at address 0."""

    ptx: str
    memory: bytearray

    def launch(self, name: str, *arguments: int, blocks: int, threads: int) -> None:
        """Run a kernel with all its threads."""
        declared, body = re.findall(rf"\.entry {name}\((.*?)\)\s*{{(.*?)\n}}", self.ptx, re.DOTALL)[0]
        names = re.findall(r"\.param \.u\d\d (\w+)", declared)
        parameters = dict(zip(names, arguments, strict=True))
        lines = [line.strip().rstrip(";") for line in body.splitlines() if line.strip()]
        step = _WARP if "wmma" in body else 1
        for block in range(blocks):
            for thread in range(0, threads, step):
                special = {"%ctaid.x": block, "%ntid.x": threads, "%tid.x": thread, "%nctaid.x": blocks}
                _Thread(self, lines, parameters, registers=dict(special)).run()

    def read(self, address: int, size: int) -> int:
        """Return a number; raise IndexError outside the memory."""
        self._within(address, size)
        return int.from_bytes(self.memory[address : address + size], "little")

    def write(self, address: int, value: int, size: int) -> None:
        """Store a number; raise IndexError outside the memory."""
        self._within(address, size)
        self.memory[address : address + size] = value.to_bytes(size, "little")

    def _within(self, address: int, size: int) -> None:
        if not 0 <= address <= len(self.memory) - size or address % size:
            raise IndexError(f"address {address:#x}, {size} bytes")


@dataclass
class _Thread:
    machine: Machine
    lines: Sequence[str]
    parameters: Mapping[str, int]
    registers: dict[str, int]
    tiles: dict[str, Tile] = field(default_factory=dict)

    def run(self) -> None:
        labels = {line[:-1]: number for number, line in enumerate(self.lines) if line.endswith(":")}
        at = 0
        while (line := self.lines[at]) != "ret":
            at += 1
            if line.endswith(":") or line.startswith("."):
                continue
            condition = line.startswith("@")
            if condition:
                predicate, line = line[1:].split(None, 1)
                if not self.registers[predicate]:
                    continue
            name, _, rest = line.partition(" ")
            if name == "bra":
                at = labels[rest]
            else:
                self._do(name.split("."), list(_operands(rest)))

    def _do(self, name: Sequence[str], operands: Sequence[str]) -> None:
        size = int(name[-1][1:]) // 8 if name[0] != "wmma" else 0
        mask = (1 << 8 * size) - 1
        match name:
            case ["wmma", *_]:
                self._matrix(name, operands)
            case ["ld", "param", _]:
                self.registers[operands[0]] = self.parameters[operands[1].strip("[]")]
            case ["ld", "global", _]:
                self.registers[operands[0]] = self.machine.read(self._address(operands[1]), size)
            case ["st", "global", _]:
                self.machine.write(self._address(operands[0]), self._value(operands[1]), size)
            case ["atom", "global", "add", _]:
                address = self._address(operands[1])
                self.registers[operands[0]] = old = self.machine.read(address, size)
                self.machine.write(address, (old + self._value(operands[2])) & mask, size)
            case ["setp", comparison, _]:
                self.registers[operands[0]] = _COMPARISONS[comparison](*map(self._value, operands[1:]))
            case ["mov", "b64"]:
                self._lanes(*operands)
            case ["mov", _] | ["cvta", *_] | ["cvt", "u64", "u32"] | ["cvt", "u32", "u16"]:
                self.registers[operands[0]] = self._value(operands[1])
            case ["cvt", "rn", "f32" | "f16" as form, "s32"]:
                number = ctypes.c_int32(self._value(operands[1])).value
                self.registers[operands[0]] = to_bits(number, "<f" if form == "f32" else "<e")
            case ["mul", "rn", "f32"]:
                x, y = (to_float(self._value(each)) for each in operands[1:])
                self.registers[operands[0]] = to_bits(ctypes.c_float(x * y).value)
            case ["fma", "rn", "f32"]:
                self.registers[operands[0]] = to_bits(_FMAF(*(to_float(self._value(each)) for each in operands[1:])))
            case ["mad", "lo", _]:
                x, y, z = (self._value(each) for each in operands[1:])
                self.registers[operands[0]] = (x * y + z) & mask
            case ["mul", "wide", _]:
                self.registers[operands[0]] = self._value(operands[1]) * self._value(operands[2])
            case _:
                self.registers[operands[0]] = _INTEGERS[name[0]](*map(self._value, operands[1:])) & mask

    def _lanes(self, target: str, source: str) -> None:
        if target.startswith("{"):
            for lane, each in enumerate(_operands(target.strip("{}"))):
                self.registers[each] = (self._value(source) >> 16 * lane) & 0xFFFF
        else:
            lanes = list(_operands(source.strip("{}")))
            self.registers[target] = sum(self.registers[each] << 16 * lane for lane, each in enumerate(lanes))

    def _matrix(self, name: Sequence[str], operands: Sequence[str]) -> None:
        match name[1]:
            case "load":
                self.tiles[operands[0]] = [
                    [
                        float(struct.unpack("<e", struct.pack("<H", self.machine.read(address, 2)))[0])
                        for address in addresses
                    ]
                    for addresses in self._rows(operands[1], operands[2], size=2)
                ]
            case "mma":
                x, y = self.tiles[operands[1]], self.tiles[operands[2]]
                total = self.tiles.get(operands[3], [[0.0] * _TILE for _ in range(_TILE)])
                columns = list(zip(*y, strict=True))
                self.tiles[operands[0]] = [
                    [
                        before + sum(map(float.__mul__, row, column))
                        for before, column in zip(line, columns, strict=True)
                    ]
                    for line, row in zip(total, x, strict=True)
                ]
            case "store":
                for line, addresses in zip(
                    self.tiles[operands[1]], self._rows(operands[0], operands[2], size=4), strict=True
                ):
                    for number, address in zip(line, addresses, strict=True):
                        self.machine.write(address, to_bits(number), 4)

    def _rows(self, address: str, stride: str, *, size: int) -> list[list[int]]:
        begin, width = self._address(address), self._value(stride)
        return [[begin + size * (row * width + column) for column in range(_TILE)] for row in range(_TILE)]

    def _address(self, text: str) -> int:
        register, _, offset = text.strip("[]").partition(" + ")
        return self.registers[register] + int(offset or "0")

    def _value(self, text: str) -> int:
        if text.startswith("%"):
            return int(self.registers[text])
        return int(f"0x{text[2:]}", 0) if text.startswith("0f") else int(text, 0)


def _operands(text: str) -> Iterator[str]:
    """Yield the operands, a list in braces as one."""
    yield from (each.strip() for each in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", text))
