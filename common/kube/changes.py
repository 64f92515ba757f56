"""Kinds of changes of the objects that an informer follows."""

import enum


class ChangeKind(enum.Enum):
    """Name the change of an object. An object recreated under its name is GONE and then APPEARED, with another UID."""

    APPEARED = "appeared"
    CHANGED = "changed"
    GONE = "gone"
