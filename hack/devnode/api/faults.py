"""Scripted faults: what a test or a demo makes the API do wrong."""

from dataclasses import dataclass, field
from typing import Final

from hack.devnode.api import errors

_MESSAGES: Final = {403: 'things is forbidden: User "somebody" cannot do this at the cluster scope'}


@dataclass
class Rule:
    """Fail the next ``count`` requests whose method and path match."""

    count: int
    status: int = 503
    method: str = ""
    path: str = ""
    retry_after: int | None = None
    message: str = ""

    def matches(self, *, method: str, path: str) -> bool:
        """Whether the rule speaks of this request."""
        return self.method in ("", method) and self.path in path


@dataclass
class Faults:
    """The rules in force. ``hits`` counts the requests that were failed."""

    rules: list[Rule] = field(default_factory=list)
    hits: int = 0

    def fail_next(
        self,
        count: int,
        *,
        status: int = 503,
        method: str = "",
        path: str = "",
        retry_after: int | None = None,
        message: str = "",
    ) -> None:
        """Answer the next ``count`` requests of a method ("" is any) and a part of a path with ``status``.

        Without a ``message`` a 403 is told as RBAC tells it.
        """
        said = message or _MESSAGES.get(status, "a scripted fault")
        self.rules.append(Rule(count, status=status, method=method, path=path, retry_after=retry_after, message=said))

    def check(self, *, method: str, path: str) -> None:
        """Raise the ApiError that a rule asks for."""
        for rule in self.rules:
            if rule.matches(method=method, path=path):
                rule.count -= 1
                self.hits += 1
                if rule.count <= 0:
                    self.rules.remove(rule)
                raise errors.ApiError(rule.status, "Scripted", rule.message, retry_after=rule.retry_after)
