"""Run the tests of a proof on the visible GPUs and report each result. Runs in the worker process only."""

import ctypes
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kubemend.agent.prove import kernels, reference
from kubemend.agent.prove.cuda import OUT_OF_MEMORY, Context, Cuda, CudaError
from kubemend.agent.prove.measurements import Facts, Finished, Message, NoAccess, Step, Test

MIB: Final = 1 << 20

_SHARE: Final = 0.9
"""Of the free memory that is used: a driver needs some for itself, and so does a process that starts now."""
_CHUNK: Final = 8 << 30
_LEAST_N: Final = 64
_WAVES: Final = 16
"""Blocks of a matrix product per multiprocessor, at least: each of them gets work in each round."""
_MOST_BLOCKS: Final = 1 << 12
"""Blocks of a kernel that walks over memory. Each thread adds its count to one word of the record, and a GPU takes
these additions one after another: with 65,536 blocks an H200 reached a fifth of its nominal bandwidth.
"""
_HEADER: Final = ("compared", "wrong", "index", "got", "expected")

Emit = Callable[[Message], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a proof, which takes well under a second.

    ``copy_size``, in bytes: of each copy. ``least_memory``, in bytes: with less free memory there is no proof.
    ``depth``: k of the matrix products, a multiple of 16. ``rounds``: of each product, 2 at least. ``samples``:
    elements of each product that the CPU computes as well. ``seed``: of all patterns.
    """

    copy_size: int = 16 * MIB
    least_memory: int = 16 * MIB
    depth: int = 256
    rounds: int = 8
    samples: int = 24
    seed: int = 0x6B75626D656E64


@dataclass(frozen=True, slots=True)
class _Product:
    test: Test
    kernel: str
    element: Callable[..., int]
    tensor: bool = False


_PRODUCTS: Final = (
    _Product(Test.INTEGER_PRODUCT, kernels.INTEGER_PRODUCT, reference.integer_element),
    _Product(Test.FLOAT_PRODUCT, kernels.FLOAT_PRODUCT, reference.float_element),
    _Product(Test.TENSOR_PRODUCT, kernels.TENSOR_PRODUCT, reference.tensor_element, tensor=True),
)


def one_gpu(cuda: Cuda, emit: Emit, *, plan: Plan, uuid: str | None = None) -> None:
    """Run all tests on the first visible GPU. Raises CudaError.

    Stops after the facts if it is not ``uuid`` (None: any will do), but for example a MIG instance, which others may
    use; on a GPU whose compute mode admits no second process; and with too little free memory.
    """
    cuda.call("cuInit", 0)
    device = cuda.device(0)
    facts = Facts(
        uuid=cuda.uuid(device),
        compute_mode=cuda.compute_mode(device),
        multiprocessors=cuda.multiprocessors(device),
        nominal_rate=cuda.nominal_rate(device),
    )
    emit(facts)
    if facts.compute_mode or (uuid is not None and not facts.are_of(uuid)):
        return
    context = Context(cuda, device, ptx=kernels.PTX)
    free, total = context.memory()
    n = _size(facts.multiprocessors)
    facts = replace(facts, memory_free=free, memory_total=total, needed=_needed(n, plan))
    emit(facts)
    if free >= facts.needed:
        tester = _Tester(cuda, context, plan=plan)
        for product in _PRODUCTS:
            cuda.test = product.test
            emit(tester.product(product, n=n))
        for step in tester.copies():
            emit(step)
        cuda.test = Test.MEMORY
        for step in tester.memory(int(context.memory()[0] * _SHARE)):
            emit(step)
        emit(Finished())
    cuda.test = None
    context.close()


def peers(cuda: Cuda, emit: Emit, *, count: int, plan: Plan) -> None:
    """Copy between all pairs of the ``count`` visible GPUs that can access each other, and name the others.

    Raises CudaError.
    """
    cuda.call("cuInit", 0)
    testers = []
    for index in range(count):
        device = cuda.device(index)
        context = Context(cuda, device, ptx=kernels.PTX)
        testers.append(_Tester(cuda, context, plan=plan, uuid=cuda.uuid(device)))
    cuda.test = Test.PEER
    for target in testers:
        for source in testers:
            if source is target:
                continue
            if not cuda.can_access(target.context.device, source.context.device):
                emit(NoAccess((source.uuid, target.uuid)))
                continue
            cuda.pair = (source.uuid, target.uuid)
            emit(replace(target.from_peer(source), pair=cuda.pair))
    cuda.test = cuda.pair = None
    emit(Finished())
    for each in testers:
        each.context.close()


def _size(multiprocessors: int) -> int:
    """Return n of the matrix products: a power of two, with enough blocks for all multiprocessors."""
    n = _LEAST_N
    while n * n // kernels.THREADS < _WAVES * multiprocessors:
        n *= 2
    return n


def _needed(n: int, plan: Plan) -> int:
    return int((2 * plan.copy_size + plan.least_memory + 4 * (2 * n * plan.depth + 2 * n * n)) / _SHARE)


class _Tester:
    """The tests on one context."""

    def __init__(self, cuda: Cuda, context: Context, *, plan: Plan, uuid: str = "") -> None:
        self._cuda = cuda
        self._plan = plan
        self.context = context
        self.uuid = uuid
        self._record = context.alloc(kernels.RECORD_BYTES)

    def product(self, product: _Product, *, n: int) -> Step:
        """Multiply two matrices in several rounds; compare all rounds with the first, and samples with the CPU."""
        context, plan = self.context, self._plan
        seeds = (plan.seed, plan.seed + (1 << 32))
        a, b = (self._factor(n * plan.depth, seed=seed, tensor=product.tensor) for seed in seeds)
        first, again = context.alloc(4 * n * n), context.alloc(4 * n * n)
        words, threads = n * n // 2, kernels.TENSOR_THREADS if product.tensor else kernels.THREADS
        blocks = n * n // (kernels.TENSOR_ELEMENTS if product.tensor else kernels.THREADS)
        context.zero(self._record, kernels.RECORD_BYTES)
        context.zero(first, 4 * n * n)
        context.begin()
        for each in range(plan.rounds):
            target = again if each else first
            numbers = (ctypes.c_uint32(number) for number in (n, plan.depth, each * (blocks // plan.rounds + 1)))
            context.launch(product.kernel, *_addresses(a, b, target), *numbers, blocks=blocks, threads=threads)
            if each:
                self._compare(again, first, words)
                context.zero(again, 4 * n * n)
        seconds = context.seconds()
        step = self._step(product.test, planned=(plan.rounds - 1) * words, seconds=seconds, detail="between rounds")
        if not step.wrong:
            step = self._with_samples(step, product, first, n=n, seeds=seeds)
        for address in (a, b, first, again):
            context.free(address)
        return step

    def copies(self) -> Iterator[Step]:
        """Copy from the host twice, compare the copies on the GPU; copy to the host, compare there."""
        context, size = self.context, self._plan.copy_size
        content = random.Random(self._plan.seed).randbytes(size)  # noqa: S311 - a pattern
        one, two = context.alloc(size), context.alloc(size)
        with context.host_memory(size) as source, context.host_memory(size) as back:
            ctypes.memmove(source, content, size)
            ctypes.memset(back, 0, size)
            self._cuda.test = Test.HOST_TO_DEVICE
            context.zero(self._record, kernels.RECORD_BYTES)
            context.zero(one, size)
            context.zero(two, size)
            context.begin()
            context.to_device(one, source, size)
            context.to_device(two, source, size)
            seconds = context.seconds()
            self._compare(two, one, size // 8)
            into = self._step(Test.HOST_TO_DEVICE, planned=size // 8, seconds=seconds, moved=2 * size)
            yield into
            self._cuda.test = Test.DEVICE_TO_HOST
            context.begin()
            context.to_host(back, one, size)
            yield _host_step(back, content, seconds=context.seconds())
        context.free(one)
        context.free(two)

    def memory(self, size: int) -> Iterator[Step]:
        """Write a pattern over ``size`` bytes of free memory and read it back; then the same with all bits inverted."""
        context = self.context
        chunks = self._chunks(size)
        total = sum(length for _, length in chunks)
        for flip in (0, reference.ALL_BITS):
            context.zero(self._record, kernels.RECORD_BYTES)
            context.begin()
            for number, (address, length) in enumerate(chunks):
                self._fill(address, length // 8, seed=self._seed(number), flip=flip)
            for number, (address, length) in enumerate(chunks):
                self._check(address, length // 8, seed=self._seed(number), flip=flip)
            seconds = context.seconds()
            detail = "inverted pattern" if flip else "pattern"
            yield self._step(Test.MEMORY, planned=total // 8, seconds=seconds, moved=2 * total, detail=detail)
        for address, _ in chunks:
            context.free(address)

    def from_peer(self, source: "_Tester") -> Step:
        """Copy a pattern from another GPU and check it here."""
        size, seed = self._plan.copy_size, self._plan.seed
        source.context.use()
        there = source._filled(size, seed=seed)  # noqa: SLF001 - of the same class
        source.context.wait()
        self.context.use()
        here = self._filled(size, seed=seed, flip=reference.ALL_BITS)
        self.context.wait()
        self.context.enable_peer(source.context)
        self.context.zero(self._record, kernels.RECORD_BYTES)
        self.context.begin()
        self.context.from_peer(here, peer=source.context, source=there, size=size)
        seconds = self.context.seconds()
        self._check(here, size // 8, seed=seed, flip=0)
        step = self._step(Test.PEER, planned=size // 8, seconds=seconds, moved=size)
        self.context.free(here)
        source.context.use()
        source.context.free(there)
        return step

    def _with_samples(self, step: Step, product: _Product, address: int, *, n: int, seeds: tuple[int, int]) -> Step:
        found = (ctypes.c_uint32 * (n * n))()
        self.context.to_host(ctypes.addressof(found), address, 4 * n * n)
        plan = self._plan
        generator = random.Random(plan.seed)  # noqa: S311 - a choice of samples
        for element in generator.sample(range(n * n), plan.samples):
            expected, got = product.element(element, n=n, k=plan.depth, seeds=seeds), found[element]
            if expected != got:
                return replace(
                    step, wrong=1, offset=4 * element, expected=expected, got=got, detail="from the CPU's result"
                )
        return replace(step, planned=step.planned + plan.samples, compared=step.compared + plan.samples)

    def _chunks(self, size: int) -> Sequence[tuple[int, int]]:
        """Allocate about ``size`` bytes in pieces; fewer if the driver has less, as other processes may start."""
        chunks: list[tuple[int, int]] = []
        length = min(_CHUNK, size) & ~7
        while length >= self._plan.least_memory:
            try:
                chunks.append((self.context.alloc(length), length))
            except CudaError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                length = (length // 2) & ~7
            else:
                size -= length
                length = min(length, size & ~7)
        return chunks

    def _factor(self, elements: int, *, seed: int, tensor: bool) -> int:
        """Return the address of a matrix; one for the tensor cores has elements of 2 bytes in place of 4."""
        if not tensor:
            return self._filled(4 * elements, seed=seed)
        address, words = self._filled(2 * elements, seed=seed), elements // 4
        self._walk(kernels.TO_HALVES, address, words, words=words)
        return address

    def _seed(self, chunk: int) -> int:
        """Return the seed of a piece of memory; no two pieces have a word in common."""
        return self._plan.seed + (chunk << 40)

    def _filled(self, size: int, *, seed: int, flip: int = 0) -> int:
        address = self.context.alloc(size)
        self._fill(address, size // 8, seed=seed, flip=flip)
        return address

    def _fill(self, address: int, words: int, *, seed: int, flip: int) -> None:
        self._walk(kernels.FILL, address, words, seed, flip, words=words)

    def _check(self, address: int, words: int, *, seed: int, flip: int) -> None:
        self._walk(kernels.CHECK, address, words, seed, flip, self._record, words=words)

    def _compare(self, address: int, expected: int, words: int) -> None:
        self._walk(kernels.COMPARE, address, expected, words, self._record, words=words)

    def _walk(self, name: str, *arguments: int, words: int) -> None:
        blocks = min(-(-words // kernels.THREADS), _MOST_BLOCKS)
        self.context.launch(name, *_addresses(*arguments), blocks=blocks, threads=kernels.THREADS)

    def _step(self, test: Test, *, planned: int, seconds: float, moved: int = 0, detail: str = "") -> Step:
        record = (ctypes.c_uint64 * len(_HEADER))()
        self.context.to_host(ctypes.addressof(record), self._record, kernels.RECORD_BYTES)
        found = dict(zip(_HEADER, record, strict=True))
        return Step(
            test=test,
            planned=planned,
            compared=found["compared"],
            wrong=found["wrong"],
            offset=8 * found["index"] if found["wrong"] else None,
            expected=found["expected"],
            got=found["got"],
            moved=moved,
            seconds=seconds,
            detail=detail,
        )


def _addresses(*values: int) -> list[ctypes.c_uint64]:
    return [ctypes.c_uint64(value) for value in values]


def _host_step(address: int, content: bytes, *, seconds: float) -> Step:
    size = len(content)
    found = ctypes.string_at(address, size)
    offset = next((at for at in range(0, size, MIB) if found[at : at + MIB] != content[at : at + MIB]), None)
    if offset is not None:
        offset = next(at for at in range(offset, size) if found[at] != content[at]) & ~7
    expected, got = (
        (int.from_bytes(each[offset : offset + 8], "little") if offset is not None else 0) for each in (content, found)
    )
    return Step(
        test=Test.DEVICE_TO_HOST,
        planned=size // 8,
        compared=size // 8,
        wrong=int(offset is not None),
        offset=offset,
        expected=expected,
        got=got,
        moved=size,
        seconds=seconds,
    )
