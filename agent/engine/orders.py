"""What an order of a round means on this node: whether it may be done, to which containers, and how. Decides nothing
that ``agent.restart.admission`` does not."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from agent.engine import ports
from agent.engine.ledger import HealthLedger, gpu_keys
from agent.engine.members import Member
from agent.engine.restarts import Request
from agent.model.devices import GpuUuid
from agent.model.rounds import Order
from agent.model.workloads import ContainerRef, ContainerState, PodView
from agent.podresources import answers
from agent.restart import admission, asking, intents, members, options


@dataclass(frozen=True, slots=True)
class Bounds:
    """What this node allows. ``obstacle`` says why none of its containers can be held; empty when nothing does."""

    opted_in_namespaces: frozenset[str] = frozenset()
    own_pod_uid: str | None = None
    dry_run: bool = False
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Who holds which device, and how the devices are."""

    holders: ports.Holders
    ledger: HealthLedger
    devices: ports.Devices


class Orders:
    """Reads orders by what is known on this node."""

    def __init__(
        self, *, outside: ports.Outside, knowledge: Knowledge, bounds: Bounds, now: Callable[[], float]
    ) -> None:
        self._outside = outside
        self._knowledge = knowledge
        self._bounds = bounds
        self._now = now

    def refusal(self, order: Order, pod: PodView) -> admission.Decision | None:
        """Return why the pod must not even be held; None when it may."""
        if order.strategy not in ("", *(strategy.value for strategy in intents.Strategy)):
            return refuse(admission.Reason.BAD_ANNOTATION, f"this agent knows no strategy {order.strategy!r}")
        refusal = self.why_not_held(pod)
        if refusal is None and pod.phase == "Succeeded":
            return refuse(admission.Reason.COMPLETED, "the pod has succeeded")
        if refusal is None and pod.phase == "Failed":
            return refuse(admission.Reason.POD_NOT_RUNNING, "the pod has failed")
        return refusal

    def why_not_held(self, pod: PodView) -> admission.Decision | None:
        """Return why nothing of a pod may be kept from running; None when it may."""
        bounds = self._bounds
        if bounds.obstacle:
            return refuse(admission.Reason.CANNOT_HOLD, bounds.obstacle)
        if bounds.dry_run:
            return refuse(admission.Reason.DRY_RUN, "this agent only says what it would do")
        return admission.why_not_held(
            pod, opted_in_namespaces=bounds.opted_in_namespaces, own_pod_uid=bounds.own_pod_uid
        )

    async def selection(self, order: Order, pod: PodView) -> members.Selection:
        """Return the containers that the order is about. Raises CriError."""
        seen = members.newest(view for view in self._outside.events.containers() if view.ref.pod.uid == pod.ref.uid)
        ended = {name: view.id for name, view in seen.items() if view.state is ContainerState.EXITED}
        infos = await asyncio.gather(*(self._outside.runtime.container_info(each) for each in ended.values()))
        codes = {name: info.exit_code for name, info in zip(ended, infos, strict=True)}
        return members.select(pod, named=order.containers or _annotated(pod), seen=seen, exit_codes=codes)

    async def request(self, member: Member, selection: members.Selection) -> Request:
        """Return the restart that a member's order asks for."""
        order = member.order
        target = ContainerRef(pod=member.pod, name=selection.restarted[0])
        allocations = await self._knowledge.holders.current(max_age=1.0)
        parts = [answers.held_by(ContainerRef(member.pod, name), allocations) for name in selection.restarted]
        known = [part for part in parts if part is not None]
        held = frozenset[GpuUuid]().union(*known) if len(known) == len(parts) else None
        return Request(
            target=target,
            cause=lambda: self.cause(member, held),
            devices=held,
            asked=asking.Asked(
                strategy=intents.Strategy(order.strategy) if order.strategy else None,
                containers=frozenset(selection.restarted),
                grace_seconds=order.grace_seconds,
                by_round=True,
            ),
            followed=member,
            withdrawn=member.why_over,
            part=member,
        )

    def cause(self, member: Member, held: frozenset[GpuUuid] | None) -> admission.Cause:
        """A device that needs more than a restart keeps a member from being restarted here."""
        ledger, inventory = self._knowledge.ledger, self._knowledge.devices.inventory
        devices = gpu_keys(held, inventory=inventory) if held is not None else ledger.devices()
        action = ledger.worst_action(devices, inventory=inventory)
        return admission.Cause(
            code=member.order.cause_code,
            message=member.order.cause_message,
            happened_at=self._now(),
            action=action,
            devices_known=held is not None or action.leaves_device_usable,
        )


def refuse(reason: admission.Reason, detail: str) -> admission.Decision:
    """Return a refusal."""
    return admission.Decision(admission.Verb.REFUSE, reason, detail)


def _annotated(pod: PodView) -> frozenset[str]:
    return options.parse(pod.annotations).containers
