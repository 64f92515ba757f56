"""Parse a list's body as it comes in, holding one item at a time, however many there are. Pure.

A body of 500 pods can have 750 MB, which would take some GB of memory if read and parsed whole. So each item is parsed
alone, handed on and dropped. Fields may come in any order: typed lists have their metadata first, others last.
"""

import codecs
import json
from collections.abc import Iterator
from typing import Any, Final

from kubemend.common.kube import safe_json

LONGEST: Final = 32 * 2**20
"""Bytes or characters of one object.

The API server accepts 3 MB in a request; escaped, that is at most six times as long.
"""

_BETWEEN: Final = " \t\n\r,"
"""Separators of items and of fields. The position of each comma is not checked."""
_DECODER: Final = json.JSONDecoder()


class NoListError(ValueError):
    """The body is not a list, or not complete."""


class _Incomplete(Exception):  # noqa: N818 - no error: more must be fed
    """The next element is not complete yet."""


class ListSplitter:
    """Split a body that is fed in chunks of any size; ``metadata`` is valid once ``end`` has succeeded."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogatepass").decode
        self._parts: list[str] = []  # fed, not yet scanned
        self._there = 0  # characters not yet scanned
        self._wanted = 0
        self._text = ""
        self._at = 0
        self._fields: dict[str, Any] = {}
        self._begun = self._in_items = self._over = False

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the list's own metadata: its version, and the token of the next page."""
        found = self._fields.get("metadata")
        return found if isinstance(found, dict) else {}

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yield the items that the chunk completes. Raises NoListError, also for an item that is too long."""
        self._parts.append(self._decoded(chunk))
        self._there += len(self._parts[-1])
        if self._there >= self._wanted:
            yield from self._complete()

    def end(self) -> Iterator[Any]:
        """Yield the remaining items after the last chunk. Raises NoListError when the list is incomplete."""
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
            self._there, self._wanted = left, 2 * left  # else a long object would be parsed at each chunk of it

    def _step(self) -> Iterator[Any]:
        """Scan the next complete element: the first brace, a field, an item, or the end of something."""
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
        """Return the next character that is not a separator, and its position."""
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
        except ValueError:  # incomplete, or not JSON, which will grow too long or end too early
            raise _Incomplete from None
        except RecursionError:
            found = safe_json.end(self._text, at)
            if found is None:
                raise _Incomplete from None
            return safe_json.loads(self._text[at:found].encode("utf-8", "surrogatepass")), found
        if end == len(self._text) and not isinstance(value, str | list | dict):
            raise _Incomplete  # a number may continue
        return value, end
