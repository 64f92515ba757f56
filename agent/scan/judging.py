"""Compute the verdicts that an agent would reach from the results of a scan if it started now. Pure.

An agent drops application faults from before its start (``faults.pipeline``): the process has ended, or runs well. A
scan drops them, too, unless the process still runs: an agent that had been running would then still hold the fault
against the device.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kubemend.agent.health.catalog.catalog import Catalog, FaultKey
from kubemend.agent.health.state import fold, recurrence
from kubemend.agent.health.state.fold import HealthState
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, Gpu, device_key, locator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.nics import Nic
from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.agent.scan import kernel_log
from kubemend.agent.scan.report import Found, Report, Row, Unseen
from kubemend.agent.sources.nvml.protocol import Condition

_OF_APP = (ActionClass.RESTART_APP, ActionClass.ASK_DRIVER)

_PID_REUSE_SLACK = 1.0
"""Seconds. As in ``agent.faults.app_faults``: a process that started later than the line reuses the pid."""


def judge(found: Found, *, catalog: Catalog, now: float) -> Report:
    """Return the report on results obtained at ``now`` (Unix seconds)."""
    state = _folded(found, catalog=catalog)
    state = _with_driver_verdict(state, found, catalog=catalog, now=now)
    state = _without_ended_faults(state, found, catalog=catalog, now=now)
    return Report(
        rows=tuple(_rows(state, found)),
        unseen=(*found.gpus.unseen, *found.log.unseen, *found.nics.unseen, *_unknown_programs(found)),
        notes=(*found.gpus.notes, *found.log.notes),
    )


def _unknown_programs(found: Found) -> Iterator[Unseen]:
    """Yield a problem if programs have failed of which it cannot be determined whether they still run."""
    named = [finding for finding in found.log.findings if finding.pid is not None and finding.action in _OF_APP]
    if named and not found.knows_pids:
        what = f"the pids in {len(named)} faults of programs are of another PID namespace: whether they run is unknown"
        yield Unseen(kernel_log.PART, what, "share the host's PID namespace (--pid=host, hostPID: true)")


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
    """Return whether a process that the fault may have hit may still run. NVML findings are current by definition."""
    since, pids = finding.boot_seconds, _hit(finding, found)
    if since is None or pids is None:
        return True
    began = map(found.started.get, pids)
    return any(each is not None and each <= since + _PID_REUSE_SLACK for each in began)


def _hit(finding: Finding, found: Found) -> Iterable[int] | None:
    """Return the process that the finding names; where it names none, all processes on the device.

    None: the driver answers, but does not list them. A device that does not answer is not healthy in any case.
    """
    if finding.pid is not None:
        return (finding.pid,)
    gpu = found.gpus.inventory.locate(finding.device)
    answer = found.gpus.answers.get(gpu.uuid) if gpu is not None else None
    if answer is None:
        return ()
    return [process.pid for process in answer.processes] if answer.processes is not None else None


def _with_driver_verdict(state: HealthState, found: Found, *, catalog: Catalog, now: float) -> HealthState:
    """Apply the driver's recovery action (NVML field 230) where the catalog leaves the decision to it."""
    for device, active_faults in state.devices.items():
        answer = found.gpus.answers.get(DeviceId(device))
        asked = any(active_fault.action is ActionClass.ASK_DRIVER for active_fault in active_faults)
        if asked and answer is not None and answer.recovery_action is not None:
            code = str(answer.recovery_action)
            action = catalog.action(FaultKey(FindingKind.RECOVERY_ACTION, code))
            verdict = replace(_finding(FindingKind.RECOVERY_ACTION, device, code=code, now=now), action=action)
            state = fold.fold(state, verdict, device=device, catalog=catalog)
    return state


def _without_ended_faults(state: HealthState, found: Found, *, catalog: Catalog, now: float) -> HealthState:
    for device, active_faults in state.devices.items():
        if not any(_still_runs(finding, found) for finding in _of_app(device, found)):
            state = fold.fold(state, _finding(FindingKind.APP_GONE, device, now=now), device=device, catalog=catalog)
        for active_fault in active_faults:
            silence = catalog.over_after(active_fault.key)
            if silence is not None and now - active_fault.last_seen >= silence:
                over = _finding(FindingKind.FAULT_OVER, device, code=active_fault.kind.value, now=now)
                state = fold.fold(state, over, device=device, catalog=catalog)
    return state


def _of_app(device: str, found: Found) -> Iterator[Finding]:
    """Yield the findings that may be app-class faults of a device, including those that the driver decides about."""
    for finding in (*found.log.findings, *found.gpus.findings):
        if finding.action in _OF_APP and device_key(finding.device, inventory=found.gpus.inventory) == device:
            yield finding


def _finding(kind: FindingKind, device: str, *, now: float, code: str = "") -> Finding:
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
        message = f"no fault known; not up, since before this scan or never cabled: {', '.join(silent)}"
        verdict = replace(verdict, message=message)
    label = " ".join(filter(None, (nic.rdma_device, *nic.netdevs)))
    model = ":".join(nic.model.split(":")[:2])
    return Row(label=label, name=f"{nic.driver} {model}".strip(), pci=str(nic.pci), verdict=verdict)


def of_agent(listed: Sequence[Mapping[str, Any]]) -> Report:
    """Return the report on an agent's verdicts (``agent.control.devices.listed``).

    No device does not mean "all healthy": an agent also lists none before it has reached the driver. Raises ValueError
    for the answer of an agent of another version.
    """
    try:
        verdicts = [
            Verdict(**{**each, "health": Health(each["health"]), "action": ActionClass(each["action"])})
            for each in listed
        ]
    except (KeyError, TypeError) as error:
        raise ValueError("not a list of devices") from error
    none = Unseen("agent", "it lists no device", "check whether it finds the driver: kubemend doctor")
    return Report(rows=tuple(map(_other, verdicts)), unseen=() if verdicts else (none,))


def _other(verdict: Verdict) -> Row:
    """Return the row of a device of which only the name is known."""
    pci = locator(verdict.device).pci
    return Row(label=verdict.device, name="", pci=str(pci or ""), verdict=verdict)
