"""What one agent has said about pods that are not known yet, and the faults that it has told. Pure, and bounded."""

from collections import OrderedDict
from typing import Final

from common.pb.coordination.v1 import coordination_pb2 as pb
from controller.hub import claims

MOST_WORDS: Final = 256
MOST_FAULTS: Final = 256


class UnknownPods:
    """Words that wait until the watch knows their pod; the newest of each kind for each pod, in the order they came."""

    __slots__ = ("_words",)

    def __init__(self) -> None:
        self._words: OrderedDict[tuple[str, str], pb.AgentMessage] = OrderedDict()

    def keep(self, message: pb.AgentMessage) -> int:
        """Keep a word; return how many had to be given up for it (0 or 1)."""
        key = (claims.subject(message), _topic(message))
        self._words.pop(key, None)
        self._words[key] = message
        if len(self._words) <= MOST_WORDS:
            return 0
        self._words.popitem(last=False)
        return 1

    def take(self, uid: str) -> list[pb.AgentMessage]:
        """Return what was said about a pod, oldest first, and forget it."""
        if not self._words:
            return []
        return [self._words.pop(key) for key in [key for key in self._words if key[0] == uid]]

    def clear(self) -> None:
        """Forget everything: a new Hello replaces all that was said before."""
        self._words.clear()


class ToldFaults:
    """Tells a repeated fault. An agent says one again only after a Hello (coordination/v1)."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def is_new(self, fault: str) -> bool:
        """Whether this id was not told since the last Hello; it is remembered."""
        if fault in self._ids:
            return False
        self._ids[fault] = None
        if len(self._ids) > MOST_FAULTS:
            self._ids.popitem(last=False)
        return True

    def clear(self) -> None:
        """Forget all: there was a Hello."""
        self._ids.clear()


def _topic(message: pb.AgentMessage) -> str:
    """Return what distinguishes words that do not replace each other."""
    match message.WhichOneof("body"):
        case "fault":
            return f"fault {message.fault.id}"
        case "result":
            return f"result {message.result.round}"
        case body:
            return str(body)
