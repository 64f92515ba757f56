"""The CPU's form of the kernels' arithmetic, against the C library's."""

import ctypes
import struct

from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.prove import reference

SEEDS = st.integers(0, reference.ALL_BITS)
_FMAF = ctypes.CDLL("libm.so.6").fmaf
_FMAF.restype = ctypes.c_float
_FMAF.argtypes = [ctypes.c_float] * 3


def number(word: int) -> float:
    return ((word & 0xFFFFFF) - 0x800000) * 2.0**-23


@given(seed=SEEDS, other=SEEDS, element=st.integers(0, 63))
def test_float_element_is_the_chain_of_fmaf(seed: int, other: int, element: int) -> None:
    n, k = 8, 32
    row, column = divmod(element, n)
    total = 0.0
    for each in range(k):
        x = number(reference.half(row * k + each, seed=seed))
        total = _FMAF(x, number(reference.half(each * n + column, seed=other)), total)

    found = reference.float_element(element, n=n, k=k, seeds=(seed, other))

    assert found == struct.unpack("<I", struct.pack("<f", total))[0]


@given(seed=SEEDS, other=SEEDS, element=st.integers(0, 63))
def test_integer_element_wraps_after_each_step(seed: int, other: int, element: int) -> None:
    n, k = 8, 5
    row, column = divmod(element, n)
    total = 0
    for each in range(k):
        x = reference.half(row * k + each, seed=seed)
        total = (total + x * reference.half(each * n + column, seed=other)) % 2**32

    assert reference.integer_element(element, n=n, k=k, seeds=(seed, other)) == total


@given(seed=SEEDS, other=SEEDS, element=st.integers(0, 63))
def test_tensor_element_is_an_exact_sum_of_small_integers(seed: int, other: int, element: int) -> None:
    n, k = 8, 16
    row, column = divmod(element, n)
    pairs = [
        (reference.small(row * k + each, seed=seed), reference.small(each * n + column, seed=other))
        for each in range(k)
    ]

    found = reference.tensor_element(element, n=n, k=k, seeds=(seed, other))

    assert struct.unpack("<f", struct.pack("<I", found))[0] == sum(x * y for x, y in pairs)
    assert all(-16 <= each < 16 for pair in pairs for each in pair)


@given(seed=SEEDS, indexes=st.sets(st.integers(0, 2**34), min_size=2, max_size=20))
def test_no_two_words_of_a_pattern_are_equal(seed: int, indexes: set[int]) -> None:
    assert len({reference.word(index, seed=seed) for index in indexes}) == len(indexes)


def test_inverted_pattern_holds_the_other_value_in_each_bit() -> None:
    assert reference.word(7, seed=1) ^ reference.word(7, seed=1, flip=reference.ALL_BITS) == reference.ALL_BITS
