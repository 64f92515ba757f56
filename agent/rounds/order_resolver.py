"""Resolve a round's order on this node: whether it is allowed, which containers it concerns, and how.

All decisions are those of ``agent.restart.admission``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from kubemend.agent.clients.podresources import convert
from kubemend.agent.devices.verdict_store import gpu_keys
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.rounds import Order
from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerState, PodView
from kubemend.agent.restart import admission, intents, members, options, overrides
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts.dependencies import Dependencies, DeviceFacts
from kubemend.agent.restarts.requests import Request
from kubemend.agent.rounds.session import MemberSession


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """Limits of this node. ``obstacle`` is the reason why no container can be held here; empty if there is none."""

    opted_in_namespaces: frozenset[str] = frozenset()
    own_pod_uid: str | None = None
    dry_run: bool = False
    obstacle: str = ""


class OrderResolver:
    """Resolve orders with the facts that this node knows."""

    def __init__(
        self, *, dependencies: Dependencies, device_facts: DeviceFacts, bounds: NodePolicy, now: Callable[[], float]
    ) -> None:
        self._dependencies = dependencies
        self._device_facts = device_facts
        self._bounds = bounds
        self._now = now

    def refusal(self, order: Order, pod: PodView) -> admission.Decision | None:
        """Return why the pod must not be held at all; None if it may be."""
        if order.strategy not in ("", *(strategy.value for strategy in intents.Strategy)):
            return refuse(Reason.BAD_ANNOTATION, f"strategy {order.strategy!r} is unknown to this agent")
        refusal = self.not_held(pod)
        if refusal is None and pod.phase == "Succeeded":
            return refuse(Reason.COMPLETED, "the pod has succeeded")
        if refusal is None and pod.phase == "Failed":
            return refuse(Reason.POD_NOT_RUNNING, "the pod has failed")
        return refusal

    def not_held(self, pod: PodView) -> admission.Decision | None:
        """Return why no container of the pod may be held; None if they may be."""
        bounds = self._bounds
        if bounds.obstacle:
            return refuse(Reason.CANNOT_HOLD, bounds.obstacle)
        if bounds.dry_run:
            return refuse(Reason.DRY_RUN, "this agent runs in observe-only mode")
        return admission.not_held(pod, opted_in_namespaces=bounds.opted_in_namespaces, own_pod_uid=bounds.own_pod_uid)

    async def selection(self, order: Order, pod: PodView) -> members.Selection:
        """Return the containers that the order concerns. Raises CriError."""
        seen = members.newest(
            view for view in self._dependencies.events.containers() if view.ref.pod.uid == pod.ref.uid
        )
        ended = {name: view.id for name, view in seen.items() if view.state is ContainerState.EXITED}
        codes = await asyncio.gather(*(self._exit_code(each) for each in ended.values()))
        by_name = dict(zip(ended, codes, strict=True))
        return members.select(pod, named=order.containers or _annotated(pod), seen=seen, exit_codes=by_name)

    async def _exit_code(self, container: ContainerId) -> int:
        return (await self._dependencies.runtime.container_status(container)).exit_code

    async def request(self, member: MemberSession, selection: members.Selection) -> Request:
        """Return the restart request for a member's order."""
        order = member.order
        target = ContainerRef(pod=member.pod, name=selection.restarted[0])
        allocations = await self._device_facts.holders.current(max_age=1.0)
        parts = [convert.held_by(ContainerRef(member.pod, name), allocations) for name in selection.restarted]
        known = [part for part in parts if part is not None]
        held = frozenset[DeviceId]().union(*known) if len(known) == len(parts) else None
        return Request(
            target=target,
            cause=lambda: self.cause(member, held),
            devices=held,
            asked=overrides.RestartOverrides(
                strategy=intents.Strategy(order.strategy) if order.strategy else None,
                containers=frozenset(selection.restarted),
                grace_seconds=order.grace_seconds,
                by_round=True,
            ),
            followed=member,
            withdrawn=member.over_reason,
            round_hooks=member,
        )

    def cause(self, member: MemberSession, held: frozenset[DeviceId] | None) -> admission.Cause:
        """Return the cause. Its action refuses the restart if a device needs more than one."""
        verdict_store, inventory = self._device_facts.verdict_store, self._device_facts.devices.inventory
        devices = gpu_keys(held, inventory=inventory) if held is not None else verdict_store.devices()
        action = verdict_store.worst_action(devices, inventory=inventory)
        return admission.Cause(
            code=member.order.cause_code,
            message=member.order.cause_message,
            happened_at=self._now(),
            action=action,
            devices_known=held is not None or action.leaves_device_usable,
        )


def refuse(reason: Reason, detail: str) -> admission.Decision:
    """Return a refusal."""
    return admission.Decision(admission.Verb.REFUSE, reason, detail)


def _annotated(pod: PodView) -> frozenset[str]:
    return options.parse(pod.annotations).containers
