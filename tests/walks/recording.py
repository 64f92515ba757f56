"""Record which modules an action goes through, by running it from a function that begins it to one that ends it.

- A walk *passes* a module if control goes through it from the beginning to the end: a function of the module is on the
  stack of the end, or of a hand-off that led there. All coroutines that await are on the stack. A hand-off is a new
  task, a result that another task waits for, or a callback for later.
- It *opens* these modules, and those that functions on the way have called before they hand off: a reader has to
  look them up, even if only to see what they answer.
- In a module anything may *run* in between, also in tasks that have nothing to do with the walk. That is the most
  that a reader could have to follow.

Left out are generated code and the two packages of value types without logic (``agent/model``, ``controller/model``).
Code outside of the agent, the controller and ``common`` does not count. There are no other exceptions.
"""

import asyncio
import contextlib
import functools
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

_ROOT: Final = Path(__file__).resolve().parents[2]
_PARTS: Final = ("agent", "controller", "common")
_LEFT_OUT: Final = (("common", "pb"), ("agent", "model"), ("controller", "model"))
_LATER: Final = frozenset({"call_soon", "call_later", "call_at"})
_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Trail:
    """The functions through which control has gone, in order, and the modules that they had called by then."""

    functions: tuple[CodeType, ...] = ()
    called: frozenset[str] = frozenset()


@dataclass
class Recorder:
    """Record one walk. Tasks that the action has not reached have no trail."""

    trail: Trail = field(default_factory=Trail)
    _runs: set[str] = field(default_factory=set)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _calls: dict[CodeType, set[str]] = field(default_factory=lambda: defaultdict(set))
    _begin: CodeType | None = None
    _end: CodeType | None = None
    _at_work: bool = False
    _trails: dict[Any, Trail] = field(default_factory=dict)
    _callbacks: dict[asyncio.Handle, Trail] = field(default_factory=dict)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _thread: int = field(default_factory=threading.get_ident)

    @property
    def passes(self) -> list[str]:
        """Return the modules that the walk passes, in order."""
        return list(dict.fromkeys(_module(code.co_filename) or "" for code in self.trail.functions))

    @property
    def opens(self) -> frozenset[str]:
        """Return these modules, and those that functions on the way call."""
        return self.trail.called.union(self.passes)

    @property
    def runs(self) -> set[str]:
        """Return all modules in which a function ran, or waited on the way."""
        return self._runs.union(self.passes)

    def expect(self, *, begin: Callable[..., Any], end: Callable[..., Any]) -> None:
        """Begin at the next call of one function, and end at the first call of the other one after it."""
        self._begin, self._end = _code(begin), _code(end)

    async def wait_ended(self) -> None:
        """Wait for the end of the walk."""
        async with asyncio.timeout(_SECONDS):
            await self.ended.wait()

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """Follow calls (``sys.setprofile``)."""
        if event == "call":
            self._called(frame)
        elif event == "return" and self._at_work and isinstance(argument, asyncio.Handle):
            if frame.f_code.co_name in _LATER and (trail := self._trail_at(frame)) is not None:
                self._callbacks[argument] = trail
        elif event == "c_call" and self._at_work and argument.__name__ == "set_result":
            self._hand_off(frame, future=argument.__self__)

    def make_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "asyncio.Task[Any]":
        """Make a task that continues the trail of the one that makes it (``loop.set_task_factory``)."""
        made = asyncio.Task(work, loop=loop, **options)
        trail = self._trail_at(sys._getframe())
        if trail is not None:
            self._trails[made] = trail
        return made

    def _called(self, frame: FrameType) -> None:
        code = frame.f_code
        if code is self._begin:
            self._begin, self._at_work = None, True
            self._trails[asyncio.current_task()] = Trail()
        if not self._at_work:
            return
        if (module := _module(code.co_filename)) is not None and code.co_name != "<module>":
            self._runs.add(module)
            if frame.f_back is not None:
                self._calls[frame.f_back.f_code].add(module)
        if code is self._end and (trail := self._trail_at(frame)) is not None:
            self.trail, self._at_work = trail, False
            self._loop.call_soon_threadsafe(self.ended.set)

    def _hand_off(self, frame: FrameType, *, future: Any) -> None:
        """Have the task that waits for a future continue this trail, unless the action has reached it before."""
        trail = self._trail_at(frame)
        if trail is None:
            return
        for task in asyncio.all_tasks(self._loop):
            if getattr(task, "_fut_waiter", None) is future:
                self._trails.setdefault(task, trail)

    def _trail_at(self, frame: FrameType) -> Trail | None:
        """Return the trail to a frame; None if the action does not go through it."""
        if not self._at_work or threading.get_ident() != self._thread:
            return None
        stack = list(_stack(frame))
        task = asyncio.current_task()
        before = self._trails.get(task) if task is not None else self._of_callback(stack)
        if before is None:
            return None
        mine = [each.f_code for each in reversed(stack) if _module(each.f_code.co_filename) is not None]
        called = before.called.union(*(self._calls.get(code, ()) for code in mine))
        return Trail(tuple(dict.fromkeys((*before.functions, *mine))), called)

    def _of_callback(self, stack: list[FrameType]) -> Trail | None:
        run = next((each for each in stack if each.f_code is asyncio.Handle._run.__code__), None)
        return self._callbacks.get(run.f_locals["self"]) if run is not None else None


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    """Follow all calls of this thread, and of those that begin within the block."""
    recorder = Recorder()
    loop = asyncio.get_running_loop()
    loop.set_task_factory(recorder.make_task)
    threading.setprofile(recorder.profile)
    sys.setprofile(recorder.profile)
    try:
        yield recorder
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        loop.set_task_factory(None)


def _code(function: Callable[..., Any]) -> CodeType:
    code: CodeType = function.__code__
    return code


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


@functools.cache
def _module(filename: str) -> str | None:
    """Return a file's path in the project if it counts."""
    path = Path(filename).resolve()
    if not path.is_relative_to(_ROOT):
        return None
    parts = path.relative_to(_ROOT).parts
    return "/".join(parts) if parts[0] in _PARTS and parts[:2] not in _LEFT_OUT else None
