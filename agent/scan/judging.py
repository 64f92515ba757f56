"""From what a scan has found to the verdicts that an agent would come to if it began now. Pure.

An agent forgets an app-class fault of before its time (``agent.engine.engine``): what it hit has long crashed or coped.
A scan does, too, unless the process still runs; an agent that was there would hold the fault against the device then.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent.health import fold, recurrence
from agent.health.catalog import Catalog, FaultKey
from agent.health.fold import HealthState
from agent.model.actions import ActionClass
from agent.model.devices import Gpu, GpuUuid, device_key, locator
from agent.model.findings import Finding, FindingKind, Source
from agent.model.nics import Nic
from agent.model.verdicts import Health, Verdict
from agent.scan.found import Found
from agent.scan.report import Report, Row, Unseen
from agent.sources.nvml.protocol import Condition

_PID_REUSE_SLACK = 1.0
"""Seconds. As in ``agent.engine.faults``: a process that began later than the line is another one of that pid."""


def judge(found: Found, *, catalog: Catalog, now: float) -> Report:
    """Return the report on what was found at ``now`` (Unix seconds)."""
    state = _folded(found, catalog=catalog)
    state = _after_the_drivers_word(state, found, catalog=catalog, now=now)
    state = _without_what_is_over(state, found, catalog=catalog, now=now)
    return Report(
        rows=tuple(_rows(state, found)),
        unseen=(*found.gpus.unseen, *found.log.unseen, *found.nics.unseen),
        notes=(*found.gpus.notes, *found.log.notes),
    )


def _folded(found: Found, *, catalog: Catalog) -> HealthState:
    state, history = HealthState(), recurrence.History()
    for finding in sorted((*found.log.findings, *found.gpus.findings), key=lambda each: each.observed_at):
        if finding.action is ActionClass.RESTART_APP and not _still_runs(finding, found):
            continue
        device = device_key(finding.device, inventory=found.gpus.inventory)
        state = fold.fold(state, finding, device=device, catalog=catalog)
        history, repeated = recurrence.noted(history, finding, device=device, catalog=catalog)
        if repeated is not None:
            state = fold.fold(state, repeated, device=device, catalog=catalog)
    return state


def _still_runs(finding: Finding, found: Found) -> bool:
    """Whether a process that the fault may have hit is still there. What NVML shows is so now."""
    since = finding.boot_seconds
    if since is None:
        return True
    began = (found.started.get(pid) for pid in _hit(finding, found))
    return any(each is not None and each <= since + _PID_REUSE_SLACK for each in began)


def _hit(finding: Finding, found: Found) -> Iterator[int]:
    """Yield the process that the finding names; where it names none, all that are on the device."""
    if finding.pid is not None:
        yield finding.pid
        return
    gpu = found.gpus.inventory.locate(finding.device)
    answer = found.gpus.answers.get(gpu.uuid) if gpu is not None else None
    if answer is not None:
        yield from (process.pid for process in answer.processes or ())


def _after_the_drivers_word(state: HealthState, found: Found, *, catalog: Catalog, now: float) -> HealthState:
    """Where the catalog leaves it to the driver: what that says (NVML field 230), if it does."""
    for device, latches in state.devices.items():
        answer = found.gpus.answers.get(GpuUuid(device))
        asked = any(latch.action is ActionClass.ASK_DRIVER for latch in latches)
        if asked and answer is not None and answer.recovery_action is not None:
            code = str(answer.recovery_action)
            action = catalog.action(FaultKey(FindingKind.RECOVERY_ACTION, code))
            word = replace(_word(FindingKind.RECOVERY_ACTION, device, code=code, now=now), action=action)
            state = fold.fold(state, word, device=device, catalog=catalog)
    return state


def _without_what_is_over(state: HealthState, found: Found, *, catalog: Catalog, now: float) -> HealthState:
    for device, latches in state.devices.items():
        for_app = any(latch.action is ActionClass.RESTART_APP for latch in latches)
        if for_app and not any(_still_runs(finding, found) for finding in _of_app(device, found)):
            state = fold.fold(state, _word(FindingKind.APP_GONE, device, now=now), device=device, catalog=catalog)
        for latch in latches:
            silence = catalog.over_after(latch.key)
            if silence is not None and now - latch.last_seen >= silence:
                over = _word(FindingKind.FAULT_OVER, device, code=latch.kind.value, now=now)
                state = fold.fold(state, over, device=device, catalog=catalog)
    return state


def _of_app(device: str, found: Found) -> Iterator[Finding]:
    """Yield what may have left an app-class fault on a device: the driver's word may make one of what it was asked."""
    for finding in (*found.log.findings, *found.gpus.findings):
        of_app = finding.action in (ActionClass.RESTART_APP, ActionClass.ASK_DRIVER)
        if of_app and device_key(finding.device, inventory=found.gpus.inventory) == device:
            yield finding


def _word(kind: FindingKind, device: str, *, now: float, code: str = "") -> Finding:
    return Finding(
        source=Source.NVML,
        kind=kind,
        code=code,
        device=locator(device),
        action=ActionClass.NONE,
        observed_at=now,
    )


def _rows(state: HealthState, found: Found) -> Iterator[Row]:
    gpus = sorted(found.gpus.inventory.gpus, key=lambda gpu: gpu.index)
    nics = found.nics.nics
    yield from (_gpu(gpu, state, found) for gpu in gpus)
    yield from (_nic(nic, state, found) for nic in nics)
    for device in sorted(state.devices.keys() - {gpu.uuid for gpu in gpus} - {str(nic.pci) for nic in nics}):
        yield _other(fold.verdict(state, device, answers=None))


def _gpu(gpu: Gpu, state: HealthState, found: Found) -> Row:
    answer = found.gpus.answers.get(gpu.uuid)
    answers = True if answer is not None and answer.condition is Condition.ANSWERS else None
    verdict = fold.verdict(state, gpu.uuid, answers=answers)
    return Row(label=f"GPU {gpu.index}", name=gpu.name, pci=str(gpu.pci), verdict=verdict)


def _nic(nic: Nic, state: HealthState, found: Found) -> Row:
    verdict = fold.verdict(state, str(nic.pci), answers=True)
    silent = found.nics.silent.get(nic, ())
    if silent and verdict.health is Health.HEALTHY:
        said = f"no fault known; not up, since before this look or never cabled: {', '.join(silent)}"
        verdict = replace(verdict, message=said)
    label = " ".join(filter(None, (nic.rdma_device, *nic.netdevs)))
    model = ":".join(nic.model.split(":")[:2])
    return Row(label=label, name=f"{nic.driver} {model}".strip(), pci=str(nic.pci), verdict=verdict)


def of_agent(listed: Sequence[Mapping[str, Any]]) -> Report:
    """Return the report on what an agent holds (``agent.control.devices.listed``).

    No device is not "all healthy": an agent shows none either while it has not seen the driver. Raises ValueError for
    what no agent of this version says.
    """
    try:
        verdicts = [
            Verdict(**{**each, "health": Health(each["health"]), "action": ActionClass(each["action"])})
            for each in listed
        ]
    except (KeyError, TypeError) as error:
        raise ValueError("not a list of devices") from error
    none = Unseen("agent", "it holds no device", "see whether it finds the driver: kubemend doctor")
    return Report(rows=tuple(map(_other, verdicts)), unseen=() if verdicts else (none,))


def _other(verdict: Verdict) -> Row:
    """Return the row of a device of which no more is known than what it is called."""
    pci = locator(verdict.device).pci
    return Row(label=verdict.device, name="", pci=str(pci or ""), verdict=verdict)
