"""Compute on the CPU, exactly, what the kernels compute (``kernels``). Pure."""

import struct
from collections.abc import Iterator
from typing import Final

from kubemend.agent.prove.kernels import MULTIPLIERS

ALL_BITS: Final = (1 << 64) - 1
_WORD32: Final = (1 << 32) - 1
_MANTISSA_BITS: Final = 24
_EXPONENT_BIAS: Final = 127
_SCALE: Final = 46
"""Each factor is an integer times 2^-23, so each product and each rounded sum is an integer times 2^-46."""


def word(index: int, *, seed: int, flip: int = 0) -> int:
    """Return word ``index`` of the pattern, 64 bits."""
    mixed = ((index + seed) * MULTIPLIERS[0]) & ALL_BITS
    mixed ^= mixed >> 29
    mixed = (mixed * MULTIPLIERS[1]) & ALL_BITS
    return mixed ^ (mixed >> 32) ^ flip


def half(index: int, *, seed: int) -> int:
    """Return the 32-bit word ``index`` of memory that holds the pattern (little-endian)."""
    whole = word(index // 2, seed=seed)
    return whole >> 32 if index % 2 else whole & _WORD32


def integer_element(element: int, *, n: int, k: int, seeds: tuple[int, int]) -> int:
    """Return one element of the integer product of two patterns."""
    return sum(x * y for x, y in _factors(element, n=n, k=k, seeds=seeds)) & _WORD32


def float_element(element: int, *, n: int, k: int, seeds: tuple[int, int]) -> int:
    """Return the bits of one element of the float product: a chain of fused multiply-adds, each rounded once."""
    total = 0  # times 2^-46
    for x, y in _factors(element, n=n, k=k, seeds=seeds):
        total = _rounded(total + _signed(x) * _signed(y))
    return _bits(total)


def tensor_element(element: int, *, n: int, k: int, seeds: tuple[int, int]) -> int:
    """Return the bits of one element of the product on the tensor cores: a sum of integers, which is exact."""
    row, column = divmod(element, n)
    total = sum(small(row * k + each, seed=seeds[0]) * small(each * n + column, seed=seeds[1]) for each in range(k))
    return int.from_bytes(struct.pack("<f", total), "little")


def small(index: int, *, seed: int) -> int:
    """Return the integer that the 16-bit number ``index`` of the pattern becomes for the tensor cores."""
    return ((word(index // 4, seed=seed) >> 16 * (index % 4)) & 31) - 16


def _factors(element: int, *, n: int, k: int, seeds: tuple[int, int]) -> Iterator[tuple[int, int]]:
    row, column = divmod(element, n)
    for each in range(k):
        yield half(row * k + each, seed=seeds[0]), half(each * n + column, seed=seeds[1])


def _signed(bits: int) -> int:
    return (bits & 0xFFFFFF) - 0x800000


def _rounded(number: int) -> int:
    """Round to 24 significant bits, to nearest, ties to even."""
    size = abs(number)
    excess = size.bit_length() - _MANTISSA_BITS
    if excess <= 0:
        return number
    kept, rest = size >> excess, size & ((1 << excess) - 1)
    middle = 1 << (excess - 1)
    kept += rest > middle or (rest == middle and kept & 1)
    return (kept << excess) * (1 if number > 0 else -1)


def _bits(number: int) -> int:
    """Return the IEEE 754 single-precision bits of ``number`` times 2^-46, which has 24 significant bits at most."""
    if number == 0:
        return 0
    size = abs(number)
    length = size.bit_length()
    exponent = length - 1 - _SCALE + _EXPONENT_BIAS
    shift = _MANTISSA_BITS - length
    mantissa = size << shift if shift >= 0 else size >> -shift
    return (int(number < 0) << 31) | (exponent << 23) | (mantissa & 0x7FFFFF)
