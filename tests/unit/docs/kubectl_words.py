"""Parse a ``kubectl`` command by the verbs and flags that the pages use. Pure."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.unit.docs.commands import Command

_EVERYWHERE: Final = {"-n": "namespace", "--namespace": "namespace", "-A": "", "--all-namespaces": ""}
_OBJECTS: Final = {"-k": "directory", "-f": "file"}
_SHOWN: Final = {"-o": "form", "--output": "form"}
_SELECTED: Final = {"-l": "labels", "--selector": "labels"}

VERBS: Final[Mapping[str, Mapping[str, str]]] = {
    "annotate": {"--overwrite": ""},
    "apply": {**_OBJECTS, "--server-side": "", "--dry-run": "dry-run"},
    "cordon": {},
    "create": {**_OBJECTS, "--dry-run": "dry-run", "--from-file": "source"},
    "debug": {"--image": "image", "-it": ""},
    "delete": {**_OBJECTS, **_SELECTED, "--ignore-not-found": ""},
    "describe": {},
    "diff": _OBJECTS,
    "drain": {"--ignore-daemonsets": "", "--delete-emptydir-data": ""},
    "exec": {"-c": "container", "-it": "", "-i": ""},
    "explain": {},
    "get": {**_SHOWN, **_SELECTED, "--show-labels": "", "--field-selector": "fields", "-w": "", "--watch": ""},
    "kustomize": {},
    "label": {"--overwrite": ""},
    "logs": {
        **_SELECTED,
        "-c": "container",
        "-f": "",
        "--max-log-requests": "number",
        "--prefix": "",
        "--previous": "",
        "--tail": "number",
    },
    "patch": {"--subresource": "subresource", "--patch": "patch", "-p": "patch", "--type": "type"},
    "rollout": {"--timeout": "time"},
    "set": {},
    "taint": {"--all": ""},
    "uncordon": {},
    "wait": {"--for": "for", "--timeout": "time"},
}
"""The flags of each verb, by the meaning of their value; "" for those without one."""

_OF_TWO_WORDS: Final = {"rollout": ("status", "restart", "undo"), "set": ("env", "image")}


class NotUnderstoodError(ValueError):
    """The command has parts that this table does not know; kubectl may, or may not."""


@dataclass(frozen=True, slots=True)
class Said:
    """One command. ``flags`` are by the meaning of their value, ``arguments`` all words without a flag."""

    verb: str
    arguments: tuple[str, ...]
    flags: Mapping[str, str]

    @property
    def namespace(self) -> str:
        """Return its namespace; "" for the reader's own."""
        return self.flags.get("namespace", "")


def read(words: tuple[str, ...]) -> Said:
    """Parse a command, ``kubectl`` itself included. Raises NotUnderstoodError."""
    words = words[1 : words.index("--")] if "--" in words else words[1:]
    arguments: list[str] = []
    flags: dict[str, str] = {}
    verb = ""
    rest = iter(words)
    for word in rest:
        if word.startswith("-"):
            known = {**_EVERYWHERE, **VERBS.get(verb, {})}
            flag, equals, value = word.partition("=")
            if flag not in known:
                raise NotUnderstoodError(f"{verb or 'kubectl'} {flag}")
            flags[known[flag] or flag] = value if equals or not known[flag] else next(rest, "")
        elif verb:
            arguments.append(word)
        else:
            verb = word
    if verb not in VERBS:
        raise NotUnderstoodError(verb)
    if verb in _OF_TWO_WORDS:
        if arguments[0] not in _OF_TWO_WORDS[verb]:
            raise NotUnderstoodError(f"{verb} {arguments[0]}")
        verb = f"{verb} {arguments.pop(0)}"
    return Said(verb, tuple(arguments), flags)


def understood(typed: Mapping[str, Command]) -> Mapping[str, Said]:
    """Return the parsed commands, without invalid ones: for each of these a test fails."""
    said: dict[str, Said] = {}
    for place, command in typed.items():
        with contextlib.suppress(NotUnderstoodError):
            said[place] = read(command.words)
    return said
