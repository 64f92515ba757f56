"""Define the parts of a strategy: a rule, the containers that it lists, and how it starts and stops them.

There is one strategy for each way to restart containers over CRI: ``agent.actuator.swap``, ``rerun``, ``reset`` and
``rules``. ``agent.actuator.plan_runner`` carries out any of them. A restart of a program by its launcher makes no such
calls, and has a loop of its own (``agent.actuator.process``).
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model.workloads import ContainerId, ContainerSummary
from kubemend.agent.restart.steps import Step


class Listing(Protocol):
    """The containers that a restart is about."""

    async def containers(self) -> tuple[ContainerSummary, ...]:
        """Return the containers that the rule must be given. Raises CriError."""

    def is_first(self, seen: Iterable[ContainerSummary]) -> bool:
        """Return whether no new container has run in place of the stopped ones."""

    def current(self, seen: Iterable[ContainerSummary]) -> dict[str, ContainerId]:
        """Return the container of each name that remains after the restart."""

    def end_detail(self, end: Step) -> str:
        """Return details of a DONE that its reason does not have, for people; empty if there are none."""


class Calls(Protocol):
    """The calls that start and stop containers: the plain ones (``agent.actuator.runtime_ops``), or a swap's.

    Each raises CriError. If the answer of a start or a stop was lost, and a listing shows its effect,
    ``complete_start`` or ``complete_stop`` is called alone.
    """

    async def create(self, name: str) -> None:
        """Create the successor of that name."""

    async def start(self, container_id: ContainerId) -> None:
        """Start a container, and do what belongs to its start."""

    async def complete_start(self, container_id: ContainerId) -> None:
        """Do what belongs to a start that has taken effect."""

    async def stop(self, container_id: ContainerId) -> None:
        """Stop a container, and do what belongs to its stop."""

    async def complete_stop(self, container_id: ContainerId) -> None:
        """Do what belongs to a stop that has taken effect."""

    def is_held(self, container_id: ContainerId) -> bool:
        """Return whether a started container waits before it runs."""


class RestartStrategy(Protocol):
    """One restart by its strategy."""

    @property
    def calls(self) -> Calls:
        """Return the calls by which its containers are started and stopped."""

    def next_steps(self) -> Sequence[Step]:
        """Return the steps that the rule requires now."""

    async def examine(self) -> None:
        """Examine the container that the last step has created, before the next step is chosen."""

    async def wait(self, step: Step, changes: "asyncio.Queue[ContainerEvent]") -> None:
        """Wait until the condition of a WAIT may have come true."""

    async def before_removal(self, container_id: ContainerId) -> None:
        """Save what its successor needs of a container that is about to be removed. Raises CriError."""

    def gives_up(self) -> bool:
        """Return whether to give up after repeated failures; False if another way was chosen instead."""

    def notes(self) -> tuple[str, ...]:
        """Return messages about the end, for people."""
