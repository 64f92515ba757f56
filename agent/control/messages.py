"""A restart request on the control socket: one JSON object in the body of a POST."""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from kubemend.agent.restart import intents, options, overrides

SOCKET: Final = "control.sock"
"""The socket's name in the agent's state directory."""

RESTARTS: Final = "/v1/restarts"
"""Path for restart requests. The answer is their progress: one object per line, until the agent closes it."""

LARGEST: Final = 16 * 1024
"""Maximum size of a request in bytes."""

_LONGEST_REASON = 256
_FIELDS = ("namespace", "pod", "containers", "strategy", "grace_seconds", "reason")


class BadRequestError(ValueError):
    """A request is invalid. The text is one line for people."""


@dataclass(frozen=True, slots=True)
class RestartRequest:
    """A restart requested by an operator. ``reason`` is the operator's own text, for conditions and logs."""

    namespace: str
    pod: str
    asked: overrides.RestartOverrides = field(default_factory=overrides.RestartOverrides)
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON."""
        strategy = self.asked.strategy
        return {
            "namespace": self.namespace,
            "pod": self.pod,
            "containers": sorted(self.asked.containers),
            "strategy": strategy.value if strategy is not None else None,
            "grace_seconds": self.asked.grace_seconds,
            "reason": self.reason,
        }


def parse(body: bytes) -> RestartRequest:
    """Parse a request. Raises BadRequestError."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequestError("the request is not JSON") from None
    if not isinstance(given, dict):
        raise BadRequestError("the request is not a JSON object")
    if unknown := sorted(set(given) - set(_FIELDS)):
        raise BadRequestError(f"unknown fields {', '.join(unknown)}; known fields: {', '.join(_FIELDS)}")
    return RestartRequest(
        namespace=_name(given, "namespace"),
        pod=_name(given, "pod"),
        asked=overrides.RestartOverrides(
            strategy=_strategy(given.get("strategy")),
            containers=_containers(given.get("containers") or []),
            grace_seconds=_grace(given.get("grace_seconds")),
        ),
        reason=_reason(given.get("reason") or ""),
    )


def _name(given: dict[str, Any], key: str) -> str:
    name = given.get(key)
    if not isinstance(name, str) or not name:
        raise BadRequestError(f"field {key} must be a name")
    return name


def _containers(names: Any) -> frozenset[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise BadRequestError("field containers must be a list of names")
    return frozenset(names)


def _strategy(name: Any) -> intents.Strategy | None:
    if name is None:
        return None
    try:
        return intents.Strategy(name)
    except ValueError:
        known = ", ".join(strategy.value for strategy in intents.Strategy)
        raise BadRequestError(f"field strategy must be one of {known}") from None


def _grace(seconds: Any) -> float | None:
    if seconds is None:
        return None
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= options.LONGEST_GRACE:
        raise BadRequestError(f"field grace_seconds must be a number of seconds from 0 to {options.LONGEST_GRACE:g}")
    return float(seconds)


def _reason(text: Any) -> str:
    if not isinstance(text, str) or len(text) > _LONGEST_REASON or not text.isprintable():
        raise BadRequestError(f"field reason must be one line of at most {_LONGEST_REASON} characters")
    return text
