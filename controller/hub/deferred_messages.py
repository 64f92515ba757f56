"""One agent's messages about pods that are not known yet, and its reported faults. Pure and bounded."""

from collections import OrderedDict
from typing import Final

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.hub import pod_authorization

MOST_WORDS: Final = 256
MOST_FAULTS: Final = 256


class UnknownPods:
    """Messages that wait until the pod Informer has their pod: the newest of each kind and pod, in order of arrival."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        self._messages: OrderedDict[tuple[str, str], pb.AgentMessage] = OrderedDict()

    def keep(self, message: pb.AgentMessage) -> int:
        """Keep a message; return how many were dropped for it (0 or 1)."""
        key = (pod_authorization.subject(message), _topic(message))
        self._messages.pop(key, None)
        self._messages[key] = message
        if len(self._messages) <= MOST_WORDS:
            return 0
        self._messages.popitem(last=False)
        return 1

    def take(self, uid: str) -> list[pb.AgentMessage]:
        """Return and forget the messages about a pod, oldest first."""
        if not self._messages:
            return []
        return [self._messages.pop(key) for key in [key for key in self._messages if key[0] == uid]]

    def clear(self) -> None:
        """Forget everything: a new Hello replaces all earlier messages."""
        self._messages.clear()


class ToldFaults:
    """Recognize a repeated fault. An agent repeats one only after a Hello (coordination/v1)."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def is_new(self, fault: str) -> bool:
        """Return whether this id is the first of its kind since the last Hello, and remember it."""
        if fault in self._ids:
            return False
        self._ids[fault] = None
        if len(self._ids) > MOST_FAULTS:
            self._ids.popitem(last=False)
        return True

    def clear(self) -> None:
        """Forget all ids, because of a Hello."""
        self._ids.clear()


def _topic(message: pb.AgentMessage) -> str:
    """Return a key for the messages that replace each other."""
    return f"fault {message.fault.id}" if message.HasField("fault") else f"result {message.result.round}"
