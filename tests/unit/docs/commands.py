"""Extract the commands of a page: texts to be typed into a shell, in blocks or within a sentence. Pure."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

SHELLS: Final = frozenset({"sh", "bash", "shell", "console"})
"""Languages of a shell's block after the fence."""
PROGRAMS: Final = frozenset({"docker", "kind", "kubectl", "kubemend", "make", "pip", "promtool", "pytest", "python"})
"""Programs that, within a sentence or in a block without language, begin a command."""

_FENCED: Final = re.compile(
    r"^(?P<indent> *)```(?P<language>\S*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_INDENTED: Final = re.compile(r"(?<=\n\n)(?: {4}\S.*\n)(?: {4}.*\n|\n(?= {4}\S))*")
_SPAN: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_PROMPT: Final = "$ "
_HERE: Final = re.compile(r"<<-?\s*'?(\w+)'?")
_BETWEEN: Final = frozenset({"|", "||", "&&", ";", "&"})
_REDIRECTIONS: Final = frozenset({">", ">>", "<", "<<", "2>"})


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command. ``words`` are as a shell splits them.

    ``mentioned``: it is in a sentence, where it may be abbreviated. ``given`` is its input from a here-document.
    """

    words: tuple[str, ...]
    mentioned: bool = False
    given: str = ""

    @property
    def program(self) -> str:
        """Return the program."""
        return self.words[0]


def blocks(page: str) -> Iterator[str]:
    """Yield the text of each shell's block of a page, for ``bash -n``."""
    for found in _FENCED.finditer(page):
        text = _dedented(found)
        if found["language"] in SHELLS and not text.startswith(_PROMPT):
            yield text


def commands(page: str) -> Iterator[Command]:
    """Yield every command of a page. Raises ValueError for one that no shell could split."""
    rest = _FENCED.sub("\n", page)
    for found in _FENCED.finditer(page):
        text = _dedented(found)
        if found["language"] in SHELLS or not found["language"]:
            yield from _of_block(text, only_of_programs=not found["language"])
    for indented in _INDENTED.findall(rest):
        yield from _of_block(re.sub("^ {4}", "", indented, flags=re.MULTILINE), only_of_programs=False)
    for span in _SPAN.findall(_INDENTED.sub("\n", rest)):
        text = " ".join(span.split())
        if _begins_a_command(text):
            yield from _split(text, mentioned=True)


def _dedented(found: re.Match[str]) -> str:
    return re.sub(f"^{found['indent']}", "", found["text"], flags=re.MULTILINE)


def _of_block(text: str, *, only_of_programs: bool) -> Iterator[Command]:
    """Return the commands of a block: every line, or with prompts, the text after one.

    In a block without language, lines that begin with a program: the rest may be a picture. An equation is not a
    command.
    """
    prompted = text.startswith(_PROMPT)
    lines = iter(text.replace("\\\n", " ").splitlines())
    for line in lines:
        typed = line.removeprefix(_PROMPT) if prompted else line
        if prompted:
            is_command = line.startswith(_PROMPT)
        else:
            is_command = _begins_a_command(line) or not (only_of_programs or line.split()[1:2] == ["="])
        if is_command:
            given = _here_document(typed, lines)
            yield from _split(typed, given=given)


def _begins_a_command(line: str) -> bool:
    words = line.split()
    return len(words) > 1 and words[0] in PROGRAMS


def _here_document(line: str, lines: Iterator[str]) -> str:
    found = _HERE.search(line)
    taken: list[str] = []
    if found:
        for each in lines:
            if each.strip() == found[1]:
                break
            taken.append(each)
    return "\n".join(taken)


def _split(line: str, *, mentioned: bool = False, given: str = "") -> Iterator[Command]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#" if not mentioned else ""
    words: list[str] = []
    for word in (*lexer, ";"):
        if word in _BETWEEN:
            yield from _commands(_without_redirections(words), mentioned=mentioned, given=given)
            words = []
        else:
            words.append(word)


def _commands(words: tuple[str, ...], *, mentioned: bool, given: str) -> Iterator[Command]:
    """Yield a command, and the one that ``kubectl exec`` runs in a container. ``kubectl mend`` is ``kubemend``."""
    if words[:2] == ("kubectl", "mend"):
        words = ("kubemend", *words[2:])
    if words:
        yield Command(words, mentioned=mentioned, given=given)
    if words and words[0] == "kubectl" and "--" in words:
        yield Command(words[words.index("--") + 1 :], mentioned=mentioned)


def _without_redirections(words: Sequence[str]) -> tuple[str, ...]:
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _REDIRECTIONS:
            skip = True
        else:
            kept.append(word)
    return tuple(kept)
