"""The kernels of a proof as PTX, which the driver compiles for its GPU: no toolkit is needed. Pure.

PTX 6.3 for sm_70 runs on Volta and all later GPUs. The CPU's form of the same arithmetic is in ``reference``.

Results are compared bit by bit. That is justified because each of them is defined to the last bit: the pattern and
the integer product are arithmetic modulo 2^64 and 2^32, and each element of the float product is one chain of
``fma.rn.f32`` in ascending order of k, without subnormal numbers. IEEE 754 defines the result of each link.

A kernel that compares writes a record of five 64-bit words: words compared, words that differ, and of the first
difference found its index, the word found and the word expected. The first word proves that the kernel has run.
"""

from typing import Final

FILL: Final = "kubemend_fill"
"""``(memory, words, seed, flip)``: write the pattern."""
CHECK: Final = "kubemend_check"
"""``(memory, words, seed, flip, record)``: compare memory with the pattern."""
COMPARE: Final = "kubemend_compare"
"""``(memory, expected, words, record)``: compare two pieces of memory."""
INTEGER_PRODUCT: Final = "kubemend_product_u32"
"""``(a, b, c, n, k, rotate)``: c = a x b for an n x k and a k x n matrix, modulo 2^32.

One thread computes one element. Block i computes the elements of block i + ``rotate``, so that another multiprocessor
computes an element in the next round.
"""
FLOAT_PRODUCT: Final = "kubemend_product_f32"
"""The same with single-precision numbers: the lower 24 bits of each word, less 2^23, times 2^-23."""

TO_HALVES: Final = "kubemend_to_halves"
"""``(memory, words)``: replace each 16-bit number by its lower 5 bits, less 16, as a half-precision number."""
TENSOR_PRODUCT: Final = "kubemend_product_f16"
"""``(a, b, c, n, k, rotate)``: the product of half-precision matrices on the tensor cores, in single precision.

One warp computes a tile of 16 x 16 elements. The order in which a tensor core adds is not defined. So the factors are
integers from -16 to 15, and all sums are integers below 2^24, which are exact in any order.
"""
TENSOR_THREADS: Final = 128
"""Per block: a warp for each of a multiprocessor's four parts."""
TENSOR_ELEMENTS: Final = TENSOR_THREADS // 32 * 16 * 16
"""Computed by a block."""

THREADS: Final = 256
"""Per block."""
RECORD_BYTES: Final = 40

MULTIPLIERS: Final = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)
"""Odd constants that spread the bits of an index (SplitMix64): no two words are equal, and all address bits count."""

_HEADER: Final = """\
.version 6.3
.target sm_70
.address_size 64
"""

_PATTERN: Final = f"""\
    add.u64 %x, %i, %seed;
    mul.lo.u64 %x, %x, 0x{MULTIPLIERS[0]:X};
    shr.u64 %t, %x, 29;
    xor.b64 %x, %x, %t;
    mul.lo.u64 %x, %x, 0x{MULTIPLIERS[1]:X};
    shr.u64 %t, %x, 32;
    xor.b64 %x, %x, %t;
    xor.b64 %x, %x, %flip;
"""

_LOOP_BEGIN: Final = """\
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %nctaid.x;
    mul.wide.u32 %i, %r0, %r1;
    cvt.u64.u32 %t, %r2;
    add.u64 %i, %i, %t;
    mul.wide.u32 %step, %r3, %r1;
    mov.u64 %seen, 0;
LOOP:
    setp.ge.u64 %p, %i, %words;
    @%p bra DONE;
    shl.b64 %at, %i, 3;
    add.u64 %at, %at, %memory;
"""

_LOOP_END: Final = """\
    add.u64 %i, %i, %step;
    bra LOOP;
DONE:
"""

_RECORD: Final = """\
    add.u64 %seen, %seen, 1;
    ld.global.u64 %got, [%at];
    setp.eq.u64 %p, %got, %x;
    @%p bra NEXT;
    atom.global.add.u64 %t, [%record + 8], 1;
    setp.ne.u64 %p, %t, 0;
    @%p bra NEXT;
    st.global.u64 [%record + 16], %i;
    st.global.u64 [%record + 24], %got;
    st.global.u64 [%record + 32], %x;
NEXT:
"""

_COUNT: Final = """\
    atom.global.add.u64 %t, [%record], %seen;
"""


def _walk(name: str, parameters: tuple[str, ...], *, body: str, end: str = "", registers: str = "") -> str:
    """Return a kernel that runs ``body`` for each word of ``memory``; its threads share any number of words."""
    declared = ",\n".join(f"    .param .u64 {each}" for each in parameters)
    loaded = "".join(f"    ld.param.u64 %{each}, [{each}];\n" for each in parameters)
    pointers = [each for each in parameters if each in ("memory", "expected", "record")]
    converted = "".join(f"    cvta.to.global.u64 %{each}, %{each};\n" for each in pointers)
    names = ", ".join(f"%{each}" for each in (*parameters, "i", "t", "step", "at", "other", "x", "got", "seen"))
    registers += f"    .reg .pred %p;\n    .reg .b32 %r<4>;\n    .reg .b64 {names};\n"
    code = f"{registers}{loaded}{converted}{_LOOP_BEGIN}{body}{_LOOP_END}{end}    ret;\n"
    return f".visible .entry {name}(\n{declared}\n)\n{{\n{code}}}\n"


def _product(name: str, *, registers: str, zero: str, step: str, store: str) -> str:
    """Return a kernel for a matrix product; ``step`` adds the product of the words %x and %y."""
    return f"""\
.visible .entry {name}(
    .param .u64 a,
    .param .u64 b,
    .param .u64 c,
    .param .u32 n,
    .param .u32 k,
    .param .u32 rotate
)
{{
    .reg .pred %p;
    .reg .b32 %n, %k, %rotate, %block, %blocks, %thread, %threads, %element, %row, %column, %x, %y;
    .reg .b64 %a, %b, %c, %offset, %stride;
{registers}    ld.param.u64 %a, [a];
    ld.param.u64 %b, [b];
    ld.param.u64 %c, [c];
    ld.param.u32 %n, [n];
    ld.param.u32 %k, [k];
    ld.param.u32 %rotate, [rotate];
    cvta.to.global.u64 %a, %a;
    cvta.to.global.u64 %b, %b;
    cvta.to.global.u64 %c, %c;
    mov.u32 %block, %ctaid.x;
    mov.u32 %blocks, %nctaid.x;
    mov.u32 %thread, %tid.x;
    mov.u32 %threads, %ntid.x;
    add.u32 %block, %block, %rotate;
    rem.u32 %block, %block, %blocks;
    mad.lo.u32 %element, %block, %threads, %thread;
    div.u32 %row, %element, %n;
    rem.u32 %column, %element, %n;
    mul.wide.u32 %offset, %row, %k;
    shl.b64 %offset, %offset, 2;
    add.u64 %a, %a, %offset;
    mul.wide.u32 %offset, %column, 4;
    add.u64 %b, %b, %offset;
    mul.wide.u32 %offset, %element, 4;
    add.u64 %c, %c, %offset;
    mul.wide.u32 %stride, %n, 4;
{zero}LOOP:
    ld.global.u32 %x, [%a];
    ld.global.u32 %y, [%b];
{step}    add.u64 %a, %a, 4;
    add.u64 %b, %b, %stride;
    sub.u32 %k, %k, 1;
    setp.ne.u32 %p, %k, 0;
    @%p bra LOOP;
{store}    ret;
}}
"""


def _lanes() -> str:
    """Return the code that converts the four numbers of the word %x."""
    code = "    ld.global.u64 %x, [%at];\n    mov.b64 {%h0, %h1, %h2, %h3}, %x;\n"
    for lane in range(4):
        code += f"""\
    cvt.u32.u16 %r0, %h{lane};
    and.b32 %r0, %r0, 31;
    sub.s32 %r0, %r0, 16;
    cvt.rn.f16.s32 %h{lane}, %r0;
"""
    return code + "    mov.b64 %x, {%h0, %h1, %h2, %h3};\n    st.global.u64 [%at], %x;\n"


def _tiles() -> str:
    """Return the kernel for the product on tensor cores."""
    a, b, c = ("{" + ", ".join(f"%{name}{each}" for each in range(8)) + "}" for name in "abc")
    zeros = "".join(f"    mov.f32 %c{each}, 0f00000000;\n" for each in range(8))
    return f"""\
.visible .entry {TENSOR_PRODUCT}(
    .param .u64 a,
    .param .u64 b,
    .param .u64 c,
    .param .u32 n,
    .param .u32 k,
    .param .u32 rotate
)
{{
    .reg .pred %p;
    .reg .b32 %n, %k, %rotate, %block, %blocks, %thread, %tile, %in_row, %row, %column;
    .reg .b32 %a<8>, %b<8>;
    .reg .f32 %c<8>;
    .reg .b64 %a, %b, %c, %offset, %stride;
    ld.param.u64 %a, [a];
    ld.param.u64 %b, [b];
    ld.param.u64 %c, [c];
    ld.param.u32 %n, [n];
    ld.param.u32 %k, [k];
    ld.param.u32 %rotate, [rotate];
    cvta.to.global.u64 %a, %a;
    cvta.to.global.u64 %b, %b;
    cvta.to.global.u64 %c, %c;
    mov.u32 %block, %ctaid.x;
    mov.u32 %blocks, %nctaid.x;
    mov.u32 %thread, %tid.x;
    add.u32 %block, %block, %rotate;
    rem.u32 %block, %block, %blocks;
    shr.u32 %tile, %thread, 5;
    mad.lo.u32 %tile, %block, {TENSOR_THREADS // 32}, %tile;
    shr.u32 %in_row, %n, 4;
    div.u32 %row, %tile, %in_row;
    rem.u32 %column, %tile, %in_row;
    shl.b32 %row, %row, 4;
    shl.b32 %column, %column, 4;
    mul.wide.u32 %offset, %row, %k;
    shl.b64 %offset, %offset, 1;
    add.u64 %a, %a, %offset;
    mul.wide.u32 %offset, %column, 2;
    add.u64 %b, %b, %offset;
    mul.wide.u32 %offset, %row, %n;
    cvt.u64.u32 %stride, %column;
    add.u64 %offset, %offset, %stride;
    shl.b64 %offset, %offset, 2;
    add.u64 %c, %c, %offset;
    mul.wide.u32 %stride, %n, 32;
    mov.u32 %row, %k;
{zeros}LOOP:
    wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {a}, [%a], %k;
    wmma.load.b.sync.aligned.row.m16n16k16.global.f16 {b}, [%b], %n;
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {c}, {a}, {b}, {c};
    add.u64 %a, %a, 32;
    add.u64 %b, %b, %stride;
    sub.u32 %row, %row, 16;
    setp.ne.u32 %p, %row, 0;
    @%p bra LOOP;
    wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%c], {c}, %n;
    ret;
}}
"""


PTX: Final = "\n".join(
    (
        _HEADER,
        _walk(FILL, ("memory", "words", "seed", "flip"), body=f"{_PATTERN}    st.global.u64 [%at], %x;\n"),
        _walk(CHECK, ("memory", "words", "seed", "flip", "record"), body=_PATTERN + _RECORD, end=_COUNT),
        _walk(
            COMPARE,
            ("memory", "expected", "words", "record"),
            body=f"""\
    shl.b64 %other, %i, 3;
    add.u64 %other, %other, %expected;
    ld.global.u64 %x, [%other];
{_RECORD}""",
            end=_COUNT,
        ),
        _walk(TO_HALVES, ("memory", "words"), registers="    .reg .b16 %h<4>;\n", body=_lanes()),
        _tiles(),
        _product(
            INTEGER_PRODUCT,
            registers="    .reg .b32 %sum;\n",
            zero="    mov.u32 %sum, 0;\n",
            step="    mad.lo.u32 %sum, %x, %y, %sum;\n",
            store="    st.global.u32 [%c], %sum;\n",
        ),
        _product(
            FLOAT_PRODUCT,
            registers="    .reg .f32 %sum, %fx, %fy;\n",
            zero="    mov.f32 %sum, 0f00000000;\n",
            step="""\
    and.b32 %x, %x, 0xFFFFFF;
    and.b32 %y, %y, 0xFFFFFF;
    sub.s32 %x, %x, 0x800000;
    sub.s32 %y, %y, 0x800000;
    cvt.rn.f32.s32 %fx, %x;
    cvt.rn.f32.s32 %fy, %y;
    mul.rn.f32 %fx, %fx, 0f34000000;
    mul.rn.f32 %fy, %fy, 0f34000000;
    fma.rn.f32 %sum, %fx, %fy, %sum;
""",
            store="    st.global.f32 [%c], %sum;\n",
        ),
    )
)
"""The module with all kernels."""
