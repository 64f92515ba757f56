"""Faults of CUDA programs in pods: each restarts its container once, by kubemend, on a real GPU and its driver.

``simulated`` checks these tests themselves where there is no GPU: the program pretends, and the lines that an H100's
driver wrote are written as they came.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from bench.journal import Journal
from hack.devnode import host_python, node, packages, readyz, trainer
from hack.devnode.observer import Observer, Seen
from hack.fakenvml import control as nvml_control
from kubemend.agent.clients.cri.errors import NotFound
from kubemend.agent.control import client, messages
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import intents, options, overrides
from kubemend.common.kube import client as kube
from tests.contract.nvml import real
from tests.gpu import faulty
from tests.gpu.records import RECORDS
from tests.gpu.witnesses import XID, KernelLog
from tests.scenarios import dev_nodes, training, watching

pytestmark = [pytest.mark.devnode, pytest.mark.timeout(150)]

SECONDS: Final = 60.0
MANY: Final = "1000000"
PINNED_GIB: Final = 4
QUIET: Final = 2.0
"""Seconds within which a second restart, or one by kubelet, would be seen."""

_H100: Final = json.loads((Path(__file__).parents[1] / "unit" / "faults" / "h100_faults.json").read_text())
_H100_NAMES: Final = {"shared": "illegal_smem"}
_H100_AT: Final = "PCI:0000:00:06"


@dataclass(frozen=True, slots=True)
class Case:
    """One fault. ``stays``: the program catches the error and hangs; else it exits because of it."""

    fault: str
    stays: bool = False
    policy: str = "OnFailure"
    pinned: int = 0

    @property
    def name(self) -> str:
        """Return the name of its pod."""
        return "-".join(each.lower() for each in (self.fault, "stays" if self.stays else "exits", self.policy))


CASES: Final = (
    *(
        Case(fault, stays)
        for fault in ("null", "misaligned", "shared", "trap", "assert", "stack")
        for stays in (True, False)
    ),
    *(
        Case(fault, stays, policy)
        for fault in ("null", "trap")
        for stays in (True, False)
        for policy in ("Always", "Never")
    ),
)


class GpuNode:
    """A dev node with one GPU, real or simulated, and the programs on it."""

    def __init__(self, dev: node.DevNode, observer: Observer) -> None:
        self.dev = dev
        self.observer = observer

    @property
    def simulated(self) -> bool:
        """Return whether programs pretend."""
        return not self.dev.has_real_gpus

    @property
    def state(self) -> Path:
        """Return the agent's state directory."""
        return self.dev.layout.agent_state

    @contextlib.asynccontextmanager
    async def agent(self, *extra: str) -> AsyncIterator[node.Agent]:
        """Run an agent, whose budgets are as if an hour had passed."""
        Journal.of(self.state).age_restarts()
        async with self.dev.agent(*extra) as agent:
            await readyz.until_ready(agent)
            yield agent

    @contextlib.asynccontextmanager
    async def pod(self, case: Case) -> AsyncIterator[Seen]:
        """Run the case's program in a pod; at the end, wait until its GPU is free for the next one."""
        try:
            async with training.made(self.observer, self._manifest(case)) as seen:
                yield seen
        finally:
            async with asyncio.timeout(SECONDS):
                while await self._devices(case.name):  # noqa: ASYNC110 - the pod-resources API has no watch
                    await asyncio.sleep(0.05)

    def lives(self, seen: Seen) -> list[Mapping[str, Any]]:
        """Return the events of the pod's programs, oldest first."""
        return [json.loads(line) for line in (self.observer.volume(seen.uid) / "lives").read_text().splitlines()]

    async def fault(self, case: Case, seen: Seen, *, pid: int) -> None:
        """Have the program fault; return when it has launched the kernel, or, if simulated, when all has come of it."""
        directory = self.observer.volume(seen.uid)
        (directory / "fault").write_text(case.fault)
        async with asyncio.timeout(SECONDS):
            while self.lives(seen)[-1]["event"] not in ("launched", "error"):  # noqa: ASYNC110 - another process's file
                await asyncio.sleep(0.002)
        if self.simulated and faulty.XIDS[case.fault]:
            await self._play(_H100[_H100_NAMES.get(case.fault, case.fault)], pid=pid, directory=directory)

    async def _play(self, record: Mapping[str, Any], *, pid: int, directory: Path) -> None:
        """Write the recorded lines about this process, and give it the error, all in their time."""
        began = asyncio.get_running_loop().time()
        written = [(at, line.partition(";")[2]) for at, line in record["kernel"]]
        error = [(record["cuda_error_ms"], "")] if record["cuda_error_ms"] is not None else []
        for at, line in sorted([*written, *error]):
            await asyncio.sleep(began + at / 1000 - asyncio.get_running_loop().time())
            if line:
                here = line.replace(_H100_AT, f"PCI:{nvml_control.kernel_address(0)}")
                self.dev.kernel_log.write(here.replace(f"pid={record['pid']},", f"pid={pid},"))
            else:
                (directory / "error").write_text("1")

    def _manifest(self, case: Case) -> dict[str, Any]:
        annotations = {options.RESTART: options.IN_PLACE, options.MAX_RESTARTS: MANY}
        made = trainer.manifest(
            case.name, node=self.dev.name, gpus=1, restart_policy=case.policy, annotations=annotations, sidecar=False
        )
        (container,) = made["spec"]["containers"]
        volumes, mounts = host_python.shared(Path(sys.executable), packages.CHECKOUT)
        flags = [
            f"--directory={trainer.CHECKPOINTS}",
            f"--pinned={case.pinned}",
            *(["--stays"] if case.stays else []),
            *(["--simulated"] if self.simulated else []),
        ]
        # By a program of the image: a successor whose program is on a volume is not held.
        container["command"] = ["/bin/sh", "-c", 'exec "$0" "$@"', sys.executable, "-m", "tests.gpu.faulty", *flags]
        container["env"] = [{"name": "PYTHONPATH", "value": str(packages.CHECKOUT)}]
        container["volumeMounts"] = [*container["volumeMounts"], *mounts]
        made["spec"]["volumes"] += volumes
        return made

    async def _devices(self, name: str) -> frozenset[str]:
        return await self.dev.kubelet.devices_of(name)


@pytest.fixture(
    scope="module",
    params=[pytest.param("simulated", marks=pytest.mark.long), pytest.param("real", marks=pytest.mark.gpu)],
)
def dev(request: pytest.FixtureRequest) -> Iterator[node.DevNode]:
    """A node with one GPU. Nothing is fetched or installed: a machine with a GPU may have no network."""
    if request.param == "real" and (reason := real.missing() or real.cuda_missing()) is not None:
        pytest.skip(reason)
    kind = node.Options(gpus=node.REAL) if request.param == "real" else node.Options(gpus=1)
    with dev_nodes.running("gpu", options=kind, has_programs=True) as made:
        yield made


@pytest.fixture
async def gpu_node(dev: node.DevNode) -> AsyncIterator[GpuNode]:
    """The node, for one test."""
    if not dev.has_real_gpus:
        dev.kernel_log.clear()
    async with Observer.of(dev.layout) as observer:
        yield GpuNode(dev, observer)


@dataclass(frozen=True, slots=True)
class Restart:
    """The observations of one fault and the restart after it. ``said`` are the agent's log events."""

    case: Case
    before: Seen
    after: Seen
    pid: int
    log: KernelLog
    watched: watching.Watched
    said: Sequence[Mapping[str, Any]]
    lives: Sequence[Mapping[str, Any]]
    old: tuple[float, float]
    new: tuple[float, float]

    def said_of(self, event: str, **fields: Any) -> list[Mapping[str, Any]]:
        """Return the agent's log events of a kind with these fields."""
        return [each for each in self.said if each["event"] == event and fields.items() <= each.items()]

    @property
    def by_kubelet(self) -> bool:
        """Return whether kubelet has created the successor, because it saw the old one's end first."""
        return not training.is_ours(self.after)

    @property
    def growth(self) -> int:
        """Return by how much the container's restart count has grown."""
        return self.after.restart_counts["trainer"] - self.before.restart_counts["trainer"]

    def times(self) -> dict[str, float | None]:
        """Return the time of each step in milliseconds after the first line of the kernel was read."""
        first = self.log.xids()[0][0]
        condition = f"{options.PREFIX}InPlaceRestart"
        moments = {
            "launched": self._life("launched"),
            "cuda_error": self._life("error"),
            "last_line": self.log.xids()[-1][0],
            "finding": self._said_at("finding", container=self._container),
            "attributed": self._said_at("fault.attributed"),
            "decided": self._said_at("restart.decided", verb="act"),
            "old_dead": self.old[1] or None,
            "proved": self._said_at("restart.device_proof"),
            "started": self.new[0] or None,
            "acted": self._said_at("restart.acted"),
            "first_line": self._life("began", after=first),
            "context": self._life("ready", after=first),
            "verified": self._said_at("restart.finished"),
            "condition": next(
                (at for at, kind, *_ in self.watched.conditions if kind == condition and at > first), None
            ),
        }
        return {name: None if at is None else round(1000 * (at - first), 1) for name, at in moments.items()}

    def record(self) -> dict[str, Any]:
        """Return it for the records."""
        return {
            **dataclasses.asdict(self.case),
            "times_ms": self.times(),
            "phases_ms": [each["milliseconds"] for each in self.said_of("restart.acted")],
            "restart_count": self.growth,
            "by_kubelet": self.by_kubelet,
            "waits": sorted(set(self.watched.waits)),
            "conditions": [
                self.after.condition(kind) for kind in ("DevicesHealthy", "InPlaceRestart", "DeviceFailure")
            ],
            "proofs": self.said_of("restart.device_proof"),
            "kmsg": [record for _, record in self.log.records],
        }

    @property
    def _container(self) -> str:
        return f"default/{self.case.name}/trainer"

    def _life(self, event: str, *, after: float = 0.0) -> float | None:
        return next((each["at"] for each in self.lives if each["event"] == event and each["at"] > after), None)

    def _said_at(self, event: str, **fields: Any) -> float | None:
        found = self.said_of(event, **fields)
        return datetime.fromisoformat(found[0]["timestamp"]).timestamp() if found else None


@contextlib.asynccontextmanager
async def faulted(gpu_node: GpuNode, case: Case, *agent_flags: str) -> AsyncIterator[Restart]:
    """Run a pod, have its program fault, and wait until the restart is over; yield the observations for more checks."""
    observer = gpu_node.observer
    log_path = gpu_node.dev.layout.kernel_log if gpu_node.simulated else Path("/dev/kmsg")
    async with (
        gpu_node.agent(*agent_flags) as agent,
        gpu_node.pod(case) as before,
        kube.connect(kubeconfig=gpu_node.dev.kubeconfig) as api,
        watching.watched(api, case.name) as watched,
        KernelLog.followed(log_path) as log,
    ):
        offset = agent.log.stat().st_size
        (old,) = before.running["trainer"]
        pid = await observer.pid(old)
        await gpu_node.fault(case, before, pid=pid)
        after = await training.restarted(observer, case.name, before)
        after = await observer.until(
            case.name, lambda seen: seen.step > before.step, timeout=SECONDS, what="the successor's context on the GPU"
        )
        await asyncio.sleep(QUIET)  # the measurement itself, after the restart
        after = await observer.see(case.name)
        yield Restart(
            case=case,
            before=before,
            after=after,
            pid=pid,
            log=log,
            watched=watched,
            said=said_since(agent.log, offset),
            lives=gpu_node.lives(before),
            old=await times_of(observer, old),
            new=await times_of(observer, after.running["trainer"][0]),
        )


def said_since(log: Path, offset: int) -> list[Mapping[str, Any]]:
    """Return the agent's log events from an offset on."""
    with log.open() as file:
        file.seek(offset)
        return [json.loads(line) for line in file if line.startswith("{") and line.endswith("\n")]


async def times_of(observer: Observer, container: ContainerId) -> tuple[float, float]:
    """Return when a container started and ended; zeros if the runtime has removed it."""
    try:
        return await observer.times(container)
    except NotFound:
        return 0.0, 0.0


def one_restart(seen: Restart, *, busy: bool) -> None:
    """Check that the fault was one, of that process, and led to one restart, by kubemend.

    On a ``busy`` machine kubelet may create a copy in between ("What remains possible" in docs/architecture.md).
    """
    expected = faulty.XIDS[seen.case.fault]
    assert seen.log.codes() == expected, seen.log.records
    named = seen.said_of("finding", kind="Xid", container=f"default/{seen.case.name}/trainer")
    assert {each["pid"] for each in named if each["pid"] is not None} == {seen.pid}, named
    (attributed,) = seen.said_of("fault.attributed")
    assert attributed["restart"] == [f"default/{seen.case.name}/trainer"]
    assert attributed["how"] == "Process"
    (decided,) = seen.said_of("restart.decided", verb="act")
    assert decided["cause"] in {f"Xid{code}" for code in expected}
    (_,) = seen.said_of("restart.finished")
    if busy:
        assert seen.growth <= 1 + seen.by_kubelet
    else:
        assert (seen.growth, seen.by_kubelet) == (1, False), seen.after.condition("InPlaceRestart")
    assert seen.said_of("standby.not_held") == []
    assert "CrashLoopBackOff" not in seen.watched.waits
    assert seen.watched.counts == sorted(seen.watched.counts)
    began = [each for each in seen.lives if each["event"] == "began"]
    assert [each["restart"] for each in began] == [None, "1"] or busy


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_fault_restarts_its_container_once(gpu_node: GpuNode, case: Case) -> None:
    if gpu_node.simulated and case.policy == "Never" and not case.stays:
        pytest.skip("on a busy machine kubelet may see the exit first: bench.dying counts that")
    unproved = [] if case.policy == "OnFailure" else ["--proof-timeout=0s"]  # the times of both are of interest
    async with faulted(gpu_node, case, *unproved) as seen:
        RECORDS.restarts.append(seen.record())
        if not gpu_node.simulated:
            RECORDS.kernel_log += [record for _, record in seen.log.records]
        one_restart(seen, busy=gpu_node.simulated)


async def test_gpu_is_proved_between_kill_and_start(gpu_node: GpuNode) -> None:
    if gpu_node.simulated:
        pytest.skip("a simulated GPU computes nothing")
    async with faulted(gpu_node, Case("null", policy="Always"), "--proof-timeout=10s") as seen:
        RECORDS.restarts.append(seen.record())
        one_restart(seen, busy=gpu_node.simulated)
        assert [each["result"] for each in seen.said_of("restart.device_proof")] == ["Passed"]


async def test_kill_takes_as_long_as_the_driver_needs_for_pinned_memory(gpu_node: GpuNode) -> None:
    case = Case("null", stays=True, policy="Always", pinned=PINNED_GIB)
    async with faulted(gpu_node, case, "--proof-timeout=0s") as seen:
        reported: list[Mapping[str, Any]] = []
        request = messages.RestartRequest(
            namespace="default",
            pod=case.name,
            asked=overrides.RestartOverrides(strategy=intents.Strategy.SWAP, containers=frozenset({"trainer"})),
            reason="to see its memory freed",
        )
        code = await client.follow(request, socket=gpu_node.state / messages.SOCKET, wait=True, show=reported.append)
        RECORDS.restarts.append({**seen.record(), "then_by_request": reported})
        one_restart(seen, busy=gpu_node.simulated)
        assert code == 0, reported
        if not gpu_node.simulated:
            assert any(each["event"] == "freeing" for each in reported), reported


async def test_program_that_is_killed_while_a_kernel_runs_has_only_ended(gpu_node: GpuNode) -> None:
    case = Case("spin")
    async with (
        gpu_node.agent("--proof-timeout=0s") as agent,
        gpu_node.pod(case) as before,
        KernelLog.followed(gpu_node.dev.layout.kernel_log if gpu_node.simulated else Path("/dev/kmsg")) as log,
    ):
        offset = agent.log.stat().st_size
        (old,) = before.running["trainer"]
        pid = await gpu_node.observer.pid(old)
        await gpu_node.fault(case, before, pid=pid)
        await asyncio.sleep(QUIET)
        os.kill(pid, signal.SIGKILL)
        after = await gpu_node.observer.until(
            case.name,
            lambda seen: seen.step > before.step and len(seen.running.get("trainer", ())) == 1,
            timeout=SECONDS,
            what="the next one on the GPU",
        )
        await asyncio.sleep(QUIET)
        said = said_since(agent.log, offset)
        RECORDS.restarts.append({**dataclasses.asdict(case), "agent": [each["event"] for each in said]})
        assert [record for _, record in log.records if XID in record] == []
        assert [each for each in said if each["event"] == "finding" and each["kind"] == "Xid"] == []
        assert [each for each in said if each["event"] == "restart.acted"] == [], "kubelet restarts what only ended"
        assert after.restart_counts["trainer"] == before.restart_counts["trainer"] + 1
