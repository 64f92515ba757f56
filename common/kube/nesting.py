"""JSON of any depth. Whoever may create an object with fields that nobody checks can nest them as deep as he likes.

The API server takes ten thousand levels. Python's parser gives up after some hundred, with an error that is no
``ValueError``: one such object in a list would end whatever reads the list. So the depth is cut off instead.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

MOST: Final = 200
"""Levels that are always read; what is nested deeper may be null. Nothing of Kubernetes has more than some dozen."""

_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
_TOKEN_OF_TEXT: Final = re.compile(_TOKEN.pattern.decode(), re.DOTALL)


def loads(text: bytes) -> Any:
    """Return what JSON says. Raises ValueError for what is none."""
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(b"".join(_shallow(text)))


def end(text: str, begin: int) -> int | None:
    """Return where the list or object ends that begins there; None when the text ends before it."""
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
