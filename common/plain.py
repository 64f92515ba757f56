"""Make untrusted texts harmless for a terminal and a picture. Pure.

Any writer of an object can put control characters into its messages, and any process into its name: colours, titles, a
cursor that moves up and overwrites earlier output.
"""

from typing import Any


def text(value: str) -> str:
    """Return the text in one line, with blanks for unprintable characters."""
    return value if value.isprintable() else "".join(each if each.isprintable() else " " for each in value)


def document(value: Any) -> Any:
    """Return a JSON value with all its texts made harmless, names of fields included."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {text(name): document(inner) for name, inner in value.items()}
    return [document(inner) for inner in value] if isinstance(value, list) else value
