"""The kernels' PTX, run thread by thread, computes what the CPU's reference computes."""

import random
from collections.abc import Callable

import pytest

from kubemend.agent.prove import kernels, reference
from tests.unit.prove.ptx_machine import Machine

WORDS = 150  # no multiple of the number of threads
SEED = 0x123456789ABCDEF
RECORD = 8 * 2 * WORDS


@pytest.fixture
def device() -> Machine:
    """A device with room for two pieces of memory and a record."""
    return Machine(kernels.PTX, bytearray(RECORD + kernels.RECORD_BYTES))


def record(device: Machine) -> list[int]:
    return [device.read(RECORD + 8 * each, 8) for each in range(5)]


def fill(device: Machine, address: int, *, flip: int = 0) -> None:
    device.launch(kernels.FILL, address, WORDS, SEED, flip, blocks=2, threads=32)


@pytest.mark.parametrize("flip", [0, reference.ALL_BITS])
def test_fill_writes_the_pattern_and_nothing_else(device: Machine, flip: int) -> None:
    fill(device, 8, flip=flip)

    assert device.read(0, 8) == 0
    found = [device.read(8 * (each + 1), 8) for each in range(WORDS)]
    assert found == [reference.word(each, seed=SEED, flip=flip) for each in range(WORDS)]
    assert device.read(8 * (WORDS + 1), 8) == 0


def test_check_counts_all_words_and_finds_no_difference_in_the_pattern(device: Machine) -> None:
    fill(device, 0)

    device.launch(kernels.CHECK, 0, WORDS, SEED, 0, RECORD, blocks=2, threads=32)

    assert record(device) == [WORDS, 0, 0, 0, 0]


def test_check_records_a_flipped_bit(device: Machine) -> None:
    fill(device, 0)
    right = device.read(8 * 77, 8)
    device.write(8 * 77, right ^ (1 << 40), 8)

    device.launch(kernels.CHECK, 0, WORDS, SEED, 0, RECORD, blocks=2, threads=32)

    assert record(device) == [WORDS, 1, 77, right ^ (1 << 40), right]


def test_compare_counts_differences_and_records_one(device: Machine) -> None:
    second = 8 * WORDS
    fill(device, 0)
    fill(device, second)
    device.write(8 * 5, 1, 8)
    device.write(8 * 9, 1, 8)

    device.launch(kernels.COMPARE, 0, second, WORDS, RECORD, blocks=2, threads=32)

    compared, wrong, index, got, expected = record(device)
    assert (compared, wrong, got) == (WORDS, 2, 1)
    assert index in (5, 9)
    assert expected == reference.word(index, seed=SEED)


@pytest.mark.parametrize(
    ("kernel", "element", "threads", "rotate"),
    [
        (kernels.INTEGER_PRODUCT, reference.integer_element, 64, 0),
        (kernels.INTEGER_PRODUCT, reference.integer_element, 64, 3),
        (kernels.FLOAT_PRODUCT, reference.float_element, 64, 3),
        (kernels.TENSOR_PRODUCT, reference.tensor_element, kernels.TENSOR_THREADS, 0),
        (kernels.TENSOR_PRODUCT, reference.tensor_element, kernels.TENSOR_THREADS, 3),
    ],
)
def test_product_has_the_elements_of_the_reference(
    kernel: str, element: Callable[..., int], threads: int, rotate: int
) -> None:
    of_tensors = kernel == kernels.TENSOR_PRODUCT
    n, k = (64, 32) if of_tensors else (16, 8)
    size = (2 if of_tensors else 4) * n * k
    seeds = (SEED, SEED + (1 << 32))
    device = Machine(kernels.PTX, bytearray(2 * size + 4 * n * n))
    for address, seed in zip((0, size), seeds, strict=True):
        device.launch(kernels.FILL, address, size // 8, seed, 0, blocks=1, threads=32)
        if of_tensors:
            device.launch(kernels.TO_HALVES, address, size // 8, blocks=1, threads=32)
    blocks = n * n // (kernels.TENSOR_ELEMENTS if of_tensors else threads)

    device.launch(kernel, 0, size, 2 * size, n, k, rotate, blocks=blocks, threads=threads)

    chosen = random.Random(1).sample(range(n * n), 200)
    found = [device.read(2 * size + 4 * each, 4) for each in chosen]
    assert found == [element(each, n=n, k=k, seeds=seeds) for each in chosen]
