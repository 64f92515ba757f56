"""Decode JSON with a depth limit; unvalidated fields can be nested arbitrarily deep.

The API server accepts ten thousand levels. Python's parser fails after some hundred, with an error that is no
``ValueError``: one such object in a list would end the reader of the list. So deeper levels are cut off.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

MOST: Final = 200
"""Levels that are always read; deeper values may be null. No Kubernetes type has more than some dozen."""

_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
_TOKEN_OF_TEXT: Final = re.compile(_TOKEN.pattern.decode(), re.DOTALL)


def loads(text: bytes) -> Any:
    """Decode JSON. Raises ValueError for invalid JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(b"".join(_shallow(text)))


def end(text: str, begin: int) -> int | None:
    """Return where the list or object that begins at ``begin`` ends; None when the text ends before it."""
    depth = 0
    for token in _TOKEN_OF_TEXT.finditer(text, begin):
        match token[0]:
            case "[" | "{":
                depth += 1
            case "]" | "}":
                depth -= 1
        if depth == 0:
            return token.end()
    return None


def _shallow(text: bytes) -> Iterator[bytes]:
    """Yield the text with null for each list or object that is nested too deep."""
    depth, done = 0, 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"[" | b"{":
                depth += 1
                if depth == MOST + 1:
                    yield text[done : token.start()] + b"null"
            case b"]" | b"}":
                depth -= 1
                if depth == MOST:
                    done = token.end()
    if depth:
        raise ValueError("the JSON ends too early")
    yield text[done:]
