"""Prepare the proof of a restart's GPUs, also of one that a previous agent has begun."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import structlog

from kubemend.agent.actuator import device_health
from kubemend.agent.actuator import device_proof as proofs
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.outcomes import Outcome
from kubemend.agent.restart import admission, device_proof
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.restart_plan import RestartPlan
from kubemend.common import contained

log = structlog.get_logger(__name__)

RESUMED_SECONDS = 2.0
"""Seconds for kubelet to return a resumed restart's devices, and for the driver to list them."""


def prepare(
    dependencies: Dependencies,
    plan: RestartPlan,
    *,
    devices: frozenset[DeviceId] | None,
    device: str | None,
    attempt: int,
) -> proofs.PreparedProof | None:
    """Return the proof of a plan's GPUs, ready to begin; None if nothing is proved, or on an internal error.

    ``device`` is the device at fault, ``attempt`` the number of the gang's round, 0 outside rounds.
    """
    if dependencies.prover is None or not devices:
        return None
    subject = proofs.Subject(
        restart=plan.id,
        strategy=plan.strategy,
        pod=plan.target.pod,
        names=plan.names,
        devices=devices,
        device=device,
        attempt=attempt,
    )
    with contained.within(contained.Part.VERIFICATION, plan.target):
        return dependencies.prover.prepare(subject)
    return None


@dataclass(frozen=True, slots=True)
class ResumedDevices:
    """The devices of a resumed restart; None: unknown. ``unproved`` is the stable reason why no proof is prepared.

    ``unproved`` is empty where there is a proof, or none is due.
    """

    devices: frozenset[DeviceId] | None
    proof: proofs.PreparedProof | None
    judge: device_health.Judge
    unproved: str = ""

    def by_device(self, proving: proofs.Proving) -> Mapping[str, str]:
        """Return each GPU's result or stable reason; under ``all`` the reason why none is proved."""
        return device_proof.by_device(proving.results) or ({"all": self.unproved} if self.unproved else {})


async def of_resumed(dependencies: Dependencies, plan: RestartPlan, *, attempt: int = 0) -> ResumedDevices:
    """Find the devices of a restart that a previous agent has begun, and prepare their proof.

    The journal has no device: the faults in the saved verdicts name the GPUs that must be proved.
    """
    facts = dependencies.device_facts
    if facts is None:
        return ResumedDevices(None, None, device_health.no_obstacle)
    devices = await resumed_devices(dependencies, plan)
    if devices is None:
        reason = device_proof.DEVICES_UNKNOWN if dependencies.prover is not None else ""
        return ResumedDevices(None, None, device_health.no_obstacle, reason)
    if not devices:
        return ResumedDevices(devices, None, device_health.no_obstacle)
    cause = admission.Cause("Resumed", "a restart that a previous agent has begun", happened_at=0.0)
    return ResumedDevices(
        devices,
        prepare(dependencies, plan, devices=devices, device=None, attempt=attempt),
        lambda: admission.by_device(replace(cause, action=facts.action(devices))),
    )


async def resumed_devices(dependencies: Dependencies, plan: RestartPlan) -> frozenset[DeviceId] | None:
    """Return the devices of a restart that a previous agent has begun, once the driver lists them; None if unknown."""
    facts = dependencies.device_facts
    if facts is None:
        return None
    devices = await facts.held(plan.target.pod, sorted(plan.names), timeout=RESUMED_SECONDS)
    if devices:
        await facts.until_listed(devices, timeout=RESUMED_SECONDS)
    return devices


def log_resumed(plan: RestartPlan, outcome: Outcome, proofs: Mapping[str, str], *, stale: bool = False) -> None:
    """Log a restart that a previous agent has begun. ``proofs`` is as ``ResumedDevices.by_device`` returns it."""
    log.warning(
        "restart.resumed",
        restart=plan.id,
        container=str(plan.target),
        strategy=plan.strategy.value,
        stale=stale,
        result=outcome.result.value,
        proofs=proofs,
    )


def with_note(outcome: Outcome, proving: proofs.Proving, *, unproved: str = "") -> Outcome:
    """Return the outcome with a line about the proof for people, if there is one."""
    note = device_proof.note(proving.results) or (f"no GPU was proved: {unproved}" if unproved else "")
    return replace(outcome, notes=(*outcome.notes, note)) if note else outcome
