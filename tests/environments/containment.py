"""Break what a method calls for one of many objects, and count the errors that it contains.

The object of the method's class has only the fields that the method uses.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kubemend.common import contained


class OverError(Exception):
    """Ends a loop of the product that has no end of its own."""


def broken(*_: Any, **__: Any) -> Any:
    raise IndexError("a bug")


def nothing(*_: Any, **__: Any) -> None: ...


async def waits(*_: Any, **__: Any) -> None: ...


def first(*values: Any) -> Callable[..., Any]:
    """Return a function that returns these values, one for each call, and raises those that are errors."""
    left = [*values]

    def answer(*_: Any, **__: Any) -> Any:
        value = left.pop(0)
        if isinstance(value, Exception):
            raise value
        return value

    return answer


def later(*values: Any) -> Callable[..., Any]:
    """Return the same as a coroutine."""
    answer = first(*values)

    async def wait(*_: Any, **__: Any) -> Any:
        return answer()

    return wait


def happened() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class Case:
    """``fields`` are those of an object of this class that the method uses; ``errors`` are contained."""

    of: type
    method: str
    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    errors: int = 1
    fields: dict[str, Any] = field(default_factory=dict)

    async def run(self) -> int:
        """Call the method, which must return; return how many errors it has contained."""
        one: Any = object.__new__(self.of)
        for name, value in self.fields.items():
            setattr(one, name, value)
        before = contained.count()
        with contextlib.suppress(OverError):
            result = getattr(one, self.method)(*self.arguments, **self.named)
            if inspect.isawaitable(result):
                await result
        return contained.count() - before
