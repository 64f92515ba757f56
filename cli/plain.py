"""Texts of others made harmless for a terminal and a picture. Pure.

Anybody who may write an object can put control characters into its messages: colours, titles, a cursor that moves up
and rewrites what was told before.
"""

from typing import Any


def text(value: str) -> str:
    """Return it in one line, with blanks for what cannot be printed."""
    return value if value.isprintable() else "".join(each if each.isprintable() else " " for each in value)


def document(value: Any) -> Any:
    """Return a JSON value with all its texts made so, names of fields included."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {text(name): document(inner) for name, inner in value.items()}
    return [document(inner) for inner in value] if isinstance(value, list) else value
