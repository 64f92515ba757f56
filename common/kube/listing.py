"""A list's body, taken apart as it comes in: one item at a time is held, however many there are. Pure.

A body of 500 pods can have 750 MB. Read whole and parsed whole it would be some GB in memory; so each item is parsed
alone, handed on and forgotten. Fields may come in any order: typed lists have their metadata first, others last.
"""

import codecs
import json
from collections.abc import Iterator
from typing import Any, Final

from common.kube import nesting

LONGEST: Final = 32 * 2**20
"""Bytes or characters of one object. The API server takes 3 MB in a request; escaped, that is at most six times as
long."""

_BETWEEN: Final = " \t\n\r,"
"""What stands between items and between fields. Whether each comma is where it belongs is not our concern."""
_DECODER: Final = json.JSONDecoder()


class NoListError(ValueError):
    """What came is no list, or not the whole of it."""


class _Incomplete(Exception):  # noqa: N818 - no error: more must be fed
    """What comes next is not there as a whole yet."""


class ListSplitter:
    """Feed it the body in chunks of any size; ``metadata`` is known once ``end`` has not complained."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogatepass").decode
        self._parts: list[str] = []  # what has been fed and not been looked at
        self._there = 0  # characters that are not gone over
        self._wanted = 0
        self._text = ""
        self._at = 0
        self._fields: dict[str, Any] = {}
        self._begun = self._in_items = self._over = False

    @property
    def metadata(self) -> dict[str, Any]:
        """The list's own metadata: its version, and how to go on."""
        found = self._fields.get("metadata")
        return found if isinstance(found, dict) else {}

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yield the items that the chunk completes. Raises NoListError, also for too long an item."""
        self._parts.append(self._decoded(chunk))
        self._there += len(self._parts[-1])
        if self._there >= self._wanted:
            yield from self._complete()

    def end(self) -> Iterator[Any]:
        """Yield what is left when nothing more comes. Raises NoListError when the list is not whole."""
        self._parts.append(self._decoded(b"", final=True))
        yield from self._complete()
        if not self._over:
            raise NoListError("the list ends too early")

    def _decoded(self, chunk: bytes, *, final: bool = False) -> str:
        try:
            return self._decode(chunk, final)
        except UnicodeDecodeError as error:
            raise NoListError(str(error)) from error

    def _complete(self) -> Iterator[Any]:
        self._text = "".join((self._text[self._at :], *self._parts))
        self._parts.clear()
        self._at = 0
        try:
            while not self._over:
                yield from self._step()
        except _Incomplete:
            left = len(self._text) - self._at
            if left > LONGEST:
                raise NoListError(f"something in the list has more than {LONGEST} characters") from None
            self._there, self._wanted = left, 2 * left  # else a long object would be tried at each chunk of it

    def _step(self) -> Iterator[Any]:
        """Go over what comes next as a whole: the first brace, a field, an item, or the end of something."""
        sign, at = self._sign(self._at)
        if not self._begun:
            if sign != "{":
                raise NoListError("the answer is not a JSON object")
            self._at, self._begun = at + 1, True
        elif self._in_items and sign == "]":
            self._at, self._in_items = at + 1, False
        elif self._in_items:
            value, self._at = self._value(at)
            yield value
        elif sign == "}":
            self._at, self._over = at + 1, True
        else:
            self._field(at)

    def _field(self, at: int) -> None:
        key, end = self._value(at)
        colon, end = self._sign(end)
        if colon != ":" or not isinstance(key, str):
            raise NoListError("the answer is not a JSON object")
        first, end = self._sign(end + 1)
        if key == "items" and first == "[":
            self._at, self._in_items = end + 1, True
        else:
            self._fields[key], self._at = self._value(end)

    def _sign(self, at: int) -> tuple[str, int]:
        """Return the next sign that stands not between others, and where it is."""
        text = self._text
        while at < len(text):
            if text[at] not in _BETWEEN:
                return text[at], at
            at += 1
        raise _Incomplete

    def _value(self, at: int) -> tuple[Any, int]:
        """Return the value that begins at ``at``, and where it ends."""
        try:
            value, end = _DECODER.raw_decode(self._text, at)
        except ValueError:  # of what is not whole, and of what is no JSON, which gets too long or ends too early
            raise _Incomplete from None
        except RecursionError:
            found = nesting.end(self._text, at)
            if found is None:
                raise _Incomplete from None
            return nesting.loads(self._text[at:found].encode("utf-8", "surrogatepass")), found
        if end == len(self._text) and not isinstance(value, str | list | dict):
            raise _Incomplete  # a number may go on
        return value, end
