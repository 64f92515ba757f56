"""Build a JobSet's status during a reconcile.

A builder lives for one call of ``decide``; its input and output are frozen.
"""

from dataclasses import replace
from typing import Any

from kubemend.controller.jobset import conditions
from kubemend.controller.jobset.plan import Event, EventType, Plan, Write
from kubemend.controller.jobset.spec.model import Condition, Status


class StatusBuilder:
    """The new status, with the Events to record and the metrics to count once it is written."""

    def __init__(self, status: Status, *, now: float) -> None:
        """``now`` is Unix time: the transition time of conditions that change."""
        self.status = status
        self._before = status
        self._now = now
        self._events: list[Event] = []
        self._counts: list[str] = []
        self._warnings: list[str] = []

    def change(self, **fields: Any) -> None:
        """Set fields of the status."""
        self.status = replace(self.status, **fields)

    def set_condition(
        self, kind: str, *, is_so: bool, reason: str, message: str, event: EventType | None = EventType.NORMAL
    ) -> None:
        """Set a condition. A change is recorded as an Event of this type with the same text (None: no Event)."""
        condition = Condition(type=kind, status=is_so, reason=reason, message=message, since=self._now)
        put = conditions.put(self.status.conditions, condition)
        if put == self.status.conditions:
            return
        self.change(conditions=put)
        if event is not None:
            self.add_event(event, reason=reason, message=message)

    def add_event(self, kind: EventType, *, reason: str, message: str) -> None:
        """Add an Event."""
        self._events.append(Event(kind, reason, message))

    def count(self, what: str) -> None:
        """Add one to a metric."""
        self._counts.append(what)

    def warn(self, text: str) -> None:
        """Log a problem that a person should fix."""
        self._warnings.append(text)

    def plan(self, *groups: tuple[Write, ...], wake_at: float | None = None) -> Plan:
        """Return the decision, with these writes in their order."""
        return Plan(
            writes=tuple(group for group in groups if group),
            status=self.status if self.status != self._before else None,
            events=tuple(self._events),
            wake_at=wake_at,
            counts=tuple(self._counts),
            warnings=tuple(self._warnings),
        )
