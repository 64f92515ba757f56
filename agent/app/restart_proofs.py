"""Prove the GPUs of a restart between its kill and its release (``agent.actuator.device_proof``).

Each GPU has a worker process of its own (``agent.prove.worker``). It is started before the kill, so that only the work
on the GPU counts. A proof is skipped wherever something else may use the GPU, and never takes much longer than the
timeout. A failed proof is a finding like any other: it changes the GPU's verdict, conditions and Events.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import structlog

from kubemend.agent import ports
from kubemend.agent.actuator.device_proof import Subject
from kubemend.agent.devices.verdict_store import VerdictStore, gpu_keys
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceInventory, Gpu, locator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.workloads import Allocations
from kubemend.agent.prove import judging, measurements, workers
from kubemend.agent.prove.measurements import Measured
from kubemend.agent.prove.verdicts import Outcome, Reason, Verdict
from kubemend.agent.restart import device_proof
from kubemend.agent.restart.device_proof import DeviceProof, ProofState
from kubemend.agent.sources.nvml.protocol import DeviceAnswer, DevicesAnswer
from kubemend.agent.sources.nvml.queries import Unknown
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import contained

log = structlog.get_logger(__name__)

NO_CUDA_SECONDS: Final = 3600.0
"""Seconds for which a node without a usable libcuda has no proofs."""

_QUERY_SHARE, _STOP_SHARE, _CALL_SHARE = 0.25, 0.1, 0.75
"""Shares of the timeout: for NVML and kubelet, for the workers' end, and for one CUDA call."""

_LONGEST_CALL: Final = 5.0
"""Seconds. A call that takes longer is given up, and accuses no GPU (``judging.SHORTEST_HANG``)."""

_KINDS: Final[Mapping[Reason, FindingKind]] = {
    Reason.WRONG_RESULT: FindingKind.WRONG_RESULT,
    Reason.WRONG_MEMORY: FindingKind.WRONG_MEMORY,
    Reason.WRONG_COPY: FindingKind.WRONG_COPY,
    Reason.SLOW_MEMORY: FindingKind.SLOW_MEMORY,
    Reason.CUDA_ERROR: FindingKind.CUDA_ERROR,
}
_MPS_SERVER: Final = "nvidia-cuda-mps"
"""The first 15 characters of nvidia-cuda-mps-server, as /proc shows a process's name."""
_MOST_EVIDENCE, _LONGEST_EVIDENCE = 16, 200


class Nvml(Protocol):
    """Query NVML (``agent.sources.nvml.source.NvmlSource``)."""

    @property
    def inventory(self) -> DeviceInventory: ...
    async def query(self, uuids: Sequence[DeviceId], *, timeout: float) -> DevicesAnswer | Unknown: ...


class RestartProofs:
    """Prepare the proofs of restarts."""

    def __init__(
        self,
        *,
        nvml: Nvml,
        verdict_store: VerdictStore,
        holders: ports.Holders,
        processes: ProcFs,
        submit: Callable[[Finding], None],
        classify: Callable[[FindingKind, str], ActionClass],
        metrics: Metrics,
        timeout: float,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it; ``now`` is Unix time, ``clock`` monotonic.

        ``timeout`` bounds each proof, in seconds; 0: nothing is proved.
        """
        self._nvml = nvml
        self._verdict_store = verdict_store
        self._holders = holders
        self._processes = processes
        self._submit = submit
        self._classify = classify
        self._metrics = metrics
        self._timeout = timeout
        self._now = now
        self._clock = clock
        self._no_cuda_until = 0.0

    def prepare(self, subject: Subject) -> "RestartProof | None":
        """Return the proof of a restart's GPUs, with its workers started; None if none must be proved."""
        if self._timeout <= 0 or self._clock() < self._no_cuda_until:
            return None
        concerned = [uuid for uuid in subject.devices if self._is_concerned(uuid, subject.device)]
        due = device_proof.due(subject.devices, strategy=subject.strategy, concerned=concerned, attempt=subject.attempt)
        if not due:
            return None
        return RestartProof(
            subject,
            due,
            nvml=self._nvml,
            holders=self._holders,
            processes=self._processes,
            timeout=self._timeout,
            ended=self._ended,
        )

    def _is_concerned(self, uuid: DeviceId, device: str | None) -> bool:
        (key,) = gpu_keys([uuid], inventory=self._nvml.inventory)
        active = any(
            fault.action.severity >= ActionClass.RESTART_APP.severity
            for fault in self._verdict_store.active_faults(key)
        )
        return active or key == device or self._verdict_store.since_fault(key) < device_proof.FRESH

    def _ended(self, subject: Subject, results: Sequence[DeviceProof], verdicts: Mapping[DeviceId, Verdict]) -> None:
        """Count and log the results; submit those that accuse a GPU as findings."""
        for each in results:
            self._metrics.proofs.labels(each.state.value, each.reason).inc()
            write = log.error if each.state is ProofState.FAILED else log.info
            write(
                "restart.device_proof",
                restart=subject.restart,
                pod=str(subject.pod),
                device=each.device,
                result=each.state.value,
                reason=each.reason,
                detail=each.detail,
            )
            if each.reason == Reason.NO_CUDA.value:
                self._no_cuda_until = self._clock() + NO_CUDA_SECONDS
            if each.state is ProofState.FAILED:
                self._accuse(each, verdicts[each.device])

    def _accuse(self, result: DeviceProof, verdict: Verdict) -> None:
        assert verdict.reason is not None
        kind = _KINDS[verdict.reason]
        evidence = {str(name): str(value)[:_LONGEST_EVIDENCE] for name, value in verdict.evidence.items()}
        self._submit(
            Finding(
                source=Source.PROOF,
                kind=kind,
                code="",
                device=locator(result.device),
                action=self._classify(kind, ""),
                observed_at=self._now(),
                text=result.detail,
                evidence=dict(list(evidence.items())[:_MOST_EVIDENCE]),
            )
        )


class RestartProof:
    """The proof of one restart's GPUs (``agent.actuator.device_proof.PreparedProof``)."""

    def __init__(
        self,
        subject: Subject,
        devices: frozenset[DeviceId],
        *,
        nvml: Nvml,
        holders: ports.Holders,
        processes: ProcFs,
        timeout: float,
        ended: Callable[[Subject, Sequence[DeviceProof], Mapping[DeviceId, Verdict]], None],
    ) -> None:
        """Start the workers. ``ended`` receives the results."""
        self._subject = subject
        self._devices = devices
        self._nvml = nvml
        self._holders = holders
        self._processes = processes
        self._timeout = timeout
        self._ended = ended
        self._verdicts = {uuid: self._unfit(uuid) for uuid in sorted(devices)}
        self._workers: dict[DeviceId, workers.Worker] = {}
        for uuid in [uuid for uuid, verdict in self._verdicts.items() if verdict is None]:
            try:
                deadline = min(_CALL_SHARE * timeout, _LONGEST_CALL)
                self._workers[uuid] = workers.Worker(
                    measurements.ONE_GPU, [uuid], deadline=deadline, leaving=processes.cgroup_root
                )
            except OSError as error:
                reason = f"the worker cannot be started: {error.strerror}"
                self._verdicts[uuid] = Verdict(Outcome.UNKNOWN, Reason.INCOMPLETE, reason)

    @property
    def devices(self) -> frozenset[DeviceId]:
        """The GPUs that it is about."""
        return self._devices

    async def run(self) -> Sequence[DeviceProof]:
        """Prove the GPUs, and report the results; an internal error accuses none."""
        with contained.within(contained.Part.DEVICE, f"proof of {self._subject.restart}") as work:
            try:
                await self._run()
            except asyncio.CancelledError:
                self._report(
                    if_open=Verdict(Outcome.UNKNOWN, Reason.INCOMPLETE, "a container was started during the proof")
                )
                raise
            finally:
                self.close()
        reason = contained.describe(work.error) if work.error is not None else ""
        return self._report(if_open=Verdict(Outcome.UNKNOWN, Reason.INCOMPLETE, f"internal error: {reason}"))

    def close(self) -> None:
        """Ask the workers to end. May be called again."""
        for each in self._workers.values():
            each.close()

    async def ended(self) -> None:
        """Wait until the workers have ended, but not for one that hangs."""
        await asyncio.gather(*(each.ended(timeout=workers.STOP_SECONDS) for each in self._workers.values()))

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + self._timeout
        open_ones = list(self._workers)
        for uuid, verdict in (await self._obstacles(open_ones)).items():
            self._verdicts[uuid] = verdict
        idle = [uuid for uuid in open_ones if self._verdicts[uuid] is None]
        stop = _STOP_SHARE * self._timeout
        async with asyncio.TaskGroup() as tasks:
            running = {
                uuid: tasks.create_task(
                    self._workers[uuid].measured(timeout=max(0.0, until - clock() - stop), stop=stop),
                    name=f"prove {uuid}",
                )
                for uuid in idle
            }
        measured = {uuid: task.result() for uuid, task in running.items()}
        judged = {uuid: judging.judge(uuid, each) for uuid, each in measured.items()}
        if any(verdict.reason is Reason.SLOW_MEMORY for verdict in judged.values()):
            judged = await self._judged_again(measured)
        self._verdicts.update(judged)

    async def _judged_again(self, measured: Mapping[DeviceId, Measured]) -> dict[DeviceId, Verdict]:
        """Judge the speed again: another process may have slowed the GPU."""
        answers = await self._answers(list(measured))
        return {
            uuid: judging.judge(uuid, each, alone=uuid in answers and answers[uuid].processes == ())
            for uuid, each in measured.items()
        }

    async def _obstacles(self, uuids: Sequence[DeviceId]) -> dict[DeviceId, Verdict | None]:
        allocations, answers = await asyncio.gather(self._allocations(), self._answers(uuids))
        found: dict[DeviceId, Verdict | None] = {}
        for uuid in uuids:
            gpu = self._nvml.inventory.by_id(uuid)
            assert gpu is not None
            answer = answers.get(uuid)
            found[uuid] = self._shared(gpu, allocations) or judging.obstacle(gpu, answer, mps=self._has_mps(answer))
        return found

    def _unfit(self, uuid: DeviceId) -> Verdict | None:
        gpu = self._nvml.inventory.by_id(uuid)
        if gpu is None or gpu.remembered:
            return Verdict(Outcome.UNKNOWN, Reason.NVML_UNCLEAR, "NVML does not list it")
        if gpu.partitions or gpu.uuid != uuid:
            return Verdict(Outcome.SKIPPED, Reason.MIG, f"it is divided into {len(gpu.partitions)} MIG instances")
        return None

    def _shared(self, gpu: Gpu, allocations: Allocations) -> Verdict | None:
        """Return the verdict on a GPU that other containers hold, or may hold at any time."""
        if not allocations.known:
            return Verdict(Outcome.UNKNOWN, Reason.SHARED, "kubelet does not report which containers hold it")
        pod, holders = self._subject.pod, allocations.holders(frozenset({gpu.uuid}))
        others = [
            f"{each.namespace}/{each.pod_name} {each.container}"
            for each in holders
            if (each.namespace, each.pod_name) != (pod.namespace, pod.name) or each.container not in self._subject.names
        ]
        if others:
            return Verdict(Outcome.SKIPPED, Reason.SHARED, f"other containers hold it: {', '.join(others[:2])}")
        if any(each.shared for each in holders):
            return Verdict(Outcome.SKIPPED, Reason.SHARED, "its device plugin shares it between containers")
        return None

    def _has_mps(self, answer: DeviceAnswer | None) -> bool:
        pids = [each.pid for each in answer.processes or ()] if answer is not None else []
        return any(self._processes.name(pid) == _MPS_SERVER for pid in pids)

    async def _allocations(self) -> Allocations:
        try:
            async with asyncio.timeout(_QUERY_SHARE * self._timeout):
                return await self._holders.current(max_age=self._timeout)
        except TimeoutError:
            return Allocations()

    async def _answers(self, uuids: Sequence[DeviceId]) -> dict[DeviceId, DeviceAnswer]:
        answer = await self._nvml.query(uuids, timeout=_QUERY_SHARE * self._timeout)
        return {each.uuid: each for each in answer.devices} if isinstance(answer, DevicesAnswer) else {}

    def _report(self, *, if_open: Verdict) -> Sequence[DeviceProof]:
        verdicts = {uuid: verdict if verdict is not None else if_open for uuid, verdict in self._verdicts.items()}
        results = device_proof.plausible([_result(uuid, verdict) for uuid, verdict in verdicts.items()])
        self._ended(self._subject, results, verdicts)
        return results


def _result(uuid: DeviceId, verdict: Verdict) -> DeviceProof:
    state, reason = ProofState(verdict.outcome.value), verdict.reason
    if state is ProofState.FAILED and reason not in _KINDS:
        state = ProofState.UNKNOWN
    return DeviceProof(uuid, state, reason.value if reason is not None else "", verdict.message)
