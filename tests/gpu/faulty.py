"""Compute on the GPU, and fault on request: the program of pods and survey: ``python -m tests.gpu.faulty``.

It uses the CUDA driver alone, with kernels in PTX: a container needs no toolkit. It works in a directory:

- ``fault``: the name of the fault to make (``KERNELS``); the program removes the file when it launches the kernel
- ``step``: how many of its lives have come as far as a context on the GPU
- ``lives``: its events, a JSON object per line, with Unix times

``--simulated`` uses no GPU. Then the error comes when the file ``error`` has its number.
"""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kubemend.agent.prove.cuda import Context, Cuda, CudaError
from kubemend.agent.sources.nvml.calls import Calls

GIB: Final = 1 << 30
_LOOK_SECONDS: Final = 0.002
_MEMORY: Final = 1 << 20


def _kernel(body: str, *, before: str = "") -> str:
    """Return a module with one kernel; %memory is the address of a megabyte of zeros."""
    return f""".version 6.3
.target sm_70
.address_size 64
{before}
.visible .entry fault(.param .u64 memory)
{{
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .b64 %memory, %a<8>;
    ld.param.u64 %memory, [memory];
{body}
    ret;
}}
"""


# A stack grows with each call until its memory ends; the compiler cannot know how deep.
_DEEP: Final = """
.func (.param .b32 result) deep(.param .b64 memory, .param .b32 depth)
{
    .local .align 8 .b8 frame[4096];
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .b64 %a<3>;
    ld.param.u64 %a0, [memory];
    ld.param.u32 %r0, [depth];
    mov.u64 %a1, frame;
    st.local.u32 [%a1+128], %r0;
    cvta.local.u64 %a2, %a1;
    st.volatile.global.u64 [%a0+64], %a2;
    ld.volatile.global.u32 %r1, [%a0];
    setp.ne.u32 %p, %r1, 0;
    @%p bra DONE;
    add.u32 %r1, %r0, 1;
    {
        .param .b64 to_memory;
        .param .b32 to_depth;
        .param .b32 back;
        st.param.b64 [to_memory], %a0;
        st.param.b32 [to_depth], %r1;
        call (back), deep, (to_memory, to_depth);
        ld.param.b32 %r2, [back];
    }
    ld.local.u32 %r0, [%a1+128];
    add.u32 %r0, %r0, %r2;
DONE:
    st.param.b32 [result], %r0;
    ret;
}
"""
_ASSERTFAIL: Final = """
.extern .func __assertfail(
    .param .b64 message, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 size
);
.global .align 1 .b8 text[6] = {102, 97, 108, 115, 101, 0};
"""

KERNELS: Final = {
    # Xid 31, with the pid in its only line.
    "null": _kernel("mov.u64 %a0, 16;\n st.global.u32 [%a0], 1;"),
    "oob": _kernel("add.u64 %a0, %memory, 0x100000000000;\n st.global.u32 [%a0], 1;"),
    "code": _kernel("CALLED: .callprototype _ ();\n add.u64 %a0, %memory, 256;\n call %a0, CALLED;"),
    # Xid 13, in several lines, of which only the last has the pid.
    "misaligned": _kernel("add.u64 %a0, %memory, 1;\n st.global.u32 [%a0], 1;"),
    "shared": _kernel("mov.u32 %r0, %nctaid.x;\n add.u32 %r0, %r0, 0xFFFFF;\n st.shared.u32 [%r0], 1;"),
    # Xid 43, with the pid in its only line.
    "trap": _kernel("trap;"),
    "assert": _kernel(
        """
    mov.u64 %a0, text;
    cvta.global.u64 %a0, %a0;
    {
        .param .b64 p0;
        .param .b64 p1;
        .param .b32 p2;
        .param .b64 p3;
        .param .b64 p4;
        st.param.b64 [p0], %a0;
        st.param.b64 [p1], %a0;
        st.param.b32 [p2], 1;
        st.param.b64 [p3], %a0;
        st.param.b64 [p4], 1;
        call.uni __assertfail, (p0, p1, p2, p3, p4);
    }""",
        before=_ASSERTFAIL,
    ),
    # Xid 13 without a pid, then Xid 43 with it.
    "stack": _kernel(
        """
    {
        .param .b64 to_memory;
        .param .b32 to_depth;
        .param .b32 back;
        st.param.b64 [to_memory], %memory;
        st.param.b32 [to_depth], 0;
        call (back), deep, (to_memory, to_depth);
        ld.param.b32 %r0, [back];
    }
    st.global.u32 [%memory+64], %r0;""",
        before=_DEEP,
    ),
    # No Xid: it runs until its process ends.
    "spin": _kernel("AGAIN:\n ld.volatile.global.u32 %r0, [%memory];\n setp.eq.u32 %p, %r0, 0;\n @%p bra AGAIN;"),
}

XIDS: Final[Mapping[str, frozenset[int]]] = {
    "null": frozenset({31}),
    "oob": frozenset({31}),
    "code": frozenset({31}),
    "misaligned": frozenset({13}),
    "shared": frozenset({13}),
    "trap": frozenset({43}),
    "assert": frozenset({43}),
    "stack": frozenset({13, 43}),
    "spin": frozenset(),
}
"""The Xids that an H100 and an H200 report for each."""


class Life:
    """Work in a directory, and record what happens there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def record(self, event: str, **fields: Any) -> None:
        """Append an event, with its time."""
        with (self._directory / "lives").open("a") as lives:
            lives.write(json.dumps({"event": event, "at": time.time(), "pid": os.getpid(), **fields}) + "\n")

    def step(self) -> None:
        """Count a life that has come as far as a context."""
        path = self._directory / "step"
        fresh = path.with_suffix(".new")
        fresh.write_text(str(1 + int(path.read_text() if path.exists() else 0)))
        fresh.replace(path)

    def wait_for(self, name: str) -> str:
        """Wait for a file, remove it, and return its content."""
        path = self._directory / name
        while not path.exists():
            time.sleep(_LOOK_SECONDS)
        text = path.read_text()
        path.unlink()
        return text


@contextlib.contextmanager
def pinned(context: Context, gib: int) -> Iterator[None]:
    """Hold that much host memory for the GPU. Freshly pinned memory is written: it is there."""
    with contextlib.ExitStack() as stack:
        for _ in range(gib):
            ctypes.memset(stack.enter_context(context.host_memory(GIB)), 0, GIB)
        yield


def fault(life: Life, cuda: Cuda, *, gib: int) -> int:
    """Compute until asked to fault; return CUDA's error, or 0 if none came."""
    cuda.call("cuInit", 0)
    context = Context(cuda, cuda.device(0), ptx=KERNELS["trap"])
    memory = context.alloc(_MEMORY)
    context.zero(memory, _MEMORY)
    context.wait()
    with pinned(context, gib):
        life.step()
        life.record("ready")
        name = life.wait_for("fault")
        launched = Context(cuda, context.device, ptx=KERNELS[name])
        try:
            life.record("launched", fault=name)
            launched.launch("fault", ctypes.c_uint64(memory), blocks=1, threads=32)
            launched.wait()
        except CudaError as error:
            life.record("error", code=error.code, name=error.name)
            return error.code
    return 0


def simulated_fault(life: Life) -> int:
    """Pretend to compute; return the error that the tests have chosen."""
    life.step()
    life.record("ready")
    life.record("launched", fault=life.wait_for("fault"))
    code = int(life.wait_for("error"))
    life.record("error", code=code)
    return code


def main() -> None:
    """Run once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--pinned", type=int, default=0, help="GiB of pinned host memory")
    parser.add_argument("--stays", action="store_true", help="catch the error and stay, as a hung program does")
    parser.add_argument("--simulated", action="store_true")
    arguments = parser.parse_args()
    life = Life(arguments.directory)
    life.record(
        "began", restart=os.environ.get("KUBEMEND_RESTART_COUNT"), reason=os.environ.get("KUBEMEND_RESTART_REASON")
    )
    if arguments.simulated:
        code = simulated_fault(life)
    else:
        cuda = Cuda(Calls(deadline=60.0, announce=lambda _: None, came_back=lambda: None))
        code = fault(life, cuda, gib=arguments.pinned)
    while arguments.stays:
        signal.pause()
    sys.exit(1 if code else 0)


if __name__ == "__main__":
    main()
