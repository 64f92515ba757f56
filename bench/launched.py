"""Kill the agent and the launchers at random moments of restarts of programs, many times over.

Pods whose program kubemend's launcher runs are on one node under the real kubelet. In each run one to three programs
get a fault: an Xid, after which the agent has the launcher restart the program; an exit with an error, or SIGKILL,
after which the launcher restarts it by itself. Then, at random moments of the restart, the agent or the launcher is
killed with SIGKILL, or both. The agent is started again. When all is quiet, exactly one program must run in each pod,
in the same pod, and go on from its last step. Never may two have run at once, also not for a moment: the program holds
a lock. One that begins while another holds it waits, and a step that the other still makes is a violation. A frozen one
makes none: the agent freezes a container before it makes another. Without a kill of its launcher a program must have
been restarted exactly once, neither by both nor by none.

Prints JSON, after Ctrl-C that of the runs so far: violations by kind, and the state in which each kill has found the
launcher. Exits with 1 if there was a violation. Past restarts are moved back in time, so no budget delays one. A pod
whose launcher was killed is replaced after its run, because kubelet's backoff would delay the next one.
"""

import asyncio
import contextlib
import enum
import functools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import structlog

from bench import early_end, figures
from bench import rig as bench_rig
from bench.journal import Journal
from bench.rig import SECONDS
from hack.devnode import launched, node, readyz, trainer
from hack.devnode.observer import Observer, Seen
from hack.fakenvml import control as nvml_control
from kubemend.agent.clients.launcher import exchange
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import options, process
from kubemend.common import logs

log = structlog.get_logger(__name__)

PODS = ("first", "second", "third")
_FROZEN = "frozen"
"""The file in which a program records that another one existed when it began, but made no step any more."""
_PROGRAM = f"""
import fcntl, os, signal, time
os.chdir("{trainer.CHECKPOINTS}")
signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))
began, lock = time.time(), open("lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    fcntl.flock(lock, fcntl.LOCK_EX)
    ran = os.path.exists("step") and os.stat("step").st_mtime > began
    open("{trainer.OVERLAPS}" if ran else "{_FROZEN}", "a").write("one\\n")
step = int(open("step").read()) if os.path.exists("step") else 0
with open("lives", "a") as lives:
    lives.write(str(step) + "\\n")
while True:
    step += 1
    with open("step.new", "w") as file:
        file.write(str(step))
    os.replace("step.new", "step")
    time.sleep(0.02)
"""
_OPTIONS = ("--max-restarts", "1000000", "--healthy-after", "0", "--spare-after", "0.5")
_LONGEST_MOMENT = 1.5
"""Seconds after a fault until which a kill may come: a restart by the agent takes about one."""
_AGENT_KILLED, _LAUNCHER_TOO, _AWAY = 0.7, 0.4, 0.3
"""Shares of the runs in which the agent is killed; then of the launchers that are, too; and with time in between."""
_LONGEST_AWAY = 2.0
_LOOK_AGAIN = 0.05
_KILL_SECONDS = 10.0
_LOG_LINES = 40


class Fault(enum.Enum):
    """Name the faults of a program."""

    XID = "xid"
    EXIT = "exit"
    KILL = "kill"


class Wrong(enum.Enum):
    """Name the kinds of violations, each with its place in the figures."""

    TWO_RAN = "two_ran"
    LOST = "restarts_lost"
    STEPS_LOST = "steps_lost"
    NOT_ONCE = "not_restarted_once"
    MOVED = "pods_not_in_place"
    UNSETTLED = "unsettled"


@dataclass(frozen=True, slots=True)
class Blow:
    """Describe what happens to one pod: its fault, and when its launcher is killed (None: it is not), in seconds."""

    pod: str
    fault: Fault
    launcher_killed: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Describe one run: the blows, when the agent is killed (None: it is not), and for how long it is away."""

    number: int
    blows: tuple[Blow, ...]
    agent_killed: float | None
    away: float

    def __str__(self) -> str:
        blows = ", ".join(
            f"{blow.pod} {blow.fault.value}"
            + (f" launcher killed at {blow.launcher_killed:.3f}" if blow.launcher_killed is not None else "")
            for blow in self.blows
        )
        agent = (
            f"; agent killed at {self.agent_killed:.3f}, away {self.away:.1f} s"
            if self.agent_killed is not None
            else ""
        )
        return f"run {self.number}: {blows}{agent}"


@dataclass(frozen=True, slots=True)
class Now:
    """Hold the observations of one pod. ``lives`` are the steps from which its programs have begun, ``programs`` run.

    ``overlaps`` began while another one ran, ``beside_frozen`` while another one existed that ran no more.
    """

    uid: str
    step: int
    lives: Sequence[int]
    overlaps: int
    programs: Sequence[int]
    beside_frozen: int = 0


def draw(pods: Sequence[str], *, count: int, seed: int) -> Iterator[Plan]:
    """Return ``count`` plans, each with at least one kill."""
    chance = random.Random(seed)
    for number in range(1, count + 1):
        agent = _moment(chance) if chance.random() < _AGENT_KILLED else None
        blows = tuple(
            Blow(
                pod,
                chance.choice(list(Fault)),
                _moment(chance) if agent is None or chance.random() < _LAUNCHER_TOO else None,
            )
            for pod in chance.sample(pods, k=chance.randint(1, len(pods)))
        )
        away = chance.uniform(0.0, _LONGEST_AWAY) if chance.random() < _AWAY else 0.0
        yield Plan(number, blows, agent, away)


def _moment(chance: random.Random) -> float:
    """Return a moment, an early one more often: a launcher by itself needs some 50 ms for a restart."""
    return float(_LONGEST_MOMENT * chance.random() ** 3)


def judge(before: Now, after: Now, blow: Blow | None, *, hit: int | None) -> frozenset[Wrong]:
    """Return the violations of one pod in a run. ``hit`` is the program that got the fault."""
    found = set()
    began = after.lives[len(before.lives) :]
    if after.overlaps > before.overlaps:
        found.add(Wrong.TWO_RAN)
    if after.uid != before.uid:
        found.add(Wrong.MOVED)
    if hit is not None and hit in after.programs:
        found.add(Wrong.LOST)
    if any(step < before.step for step in began):
        found.add(Wrong.STEPS_LOST)
    if blow is None and began:
        found.add(Wrong.NOT_ONCE)
    if blow is not None and blow.launcher_killed is None and len(began) > 1:
        found.add(Wrong.NOT_ONCE)
    return frozenset(found)


@dataclass
class Tally:
    """Count kills, the states that they found, and violations."""

    runs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    agent_kills: Counter[str] = field(default_factory=Counter)
    launcher_kills: Counter[str] = field(default_factory=Counter)
    beside_frozen: int = 0
    wrong: Counter[Wrong] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    cases: list[dict[str, Any]] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return the printed figures."""
        return {
            "runs": self.runs,
            "faults": dict(self.faults),
            "agent_kills": sum(self.agent_kills.values()),
            "launcher_kills": sum(self.launcher_kills.values()),
            "launchers_at_agent_kills": dict(self.agent_kills),
            "launchers_at_their_kills": dict(self.launcher_kills),
            "began_beside_frozen": self.beside_frozen,
            **{kind.value: self.wrong[kind] for kind in Wrong},
            "recovery_ms": figures.milliseconds(self.recoveries),
            "cases": self.cases,
        }


class Scene:
    """The pods on their node, and the agent."""

    def __init__(self, dev: node.DevNode, rig: bench_rig.Rig, state_dir: Path) -> None:
        self.rig = rig
        self._dev = dev
        self._state_dir = state_dir
        self._journal = Journal.of(state_dir)
        self._gpus: dict[str, int] = {}
        self._life = contextlib.AsyncExitStack()

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, dev: node.DevNode) -> AsyncIterator["Scene"]:
        """Start the pods and an agent; end all at the end."""
        async with bench_rig.on(dev) as rig:
            scene = cls(dev, rig, dev.layout.agent_state)
            try:
                for name in PODS:
                    await scene.create(name)
                await scene.start_agent()
                async with scene._life:
                    yield scene
            finally:
                for name in PODS:
                    await rig.observer.delete(name)

    @property
    def observer(self) -> Observer:
        """Return what sees the pods."""
        return self.rig.observer

    async def start_agent(self) -> None:
        """Start the agent; its budgets are as if an hour had passed."""
        self._journal.age_restarts()
        self._agent = await self._life.enter_async_context(self._dev.agent(f"--state-dir={self._state_dir}"))

    async def kill_agent(self) -> None:
        """Kill the agent, and return when it has ended."""
        self._agent.child.signal(signal.SIGKILL)
        await self._agent.child.wait(timeout=_KILL_SECONDS)
        await self._life.aclose()

    async def create(self, name: str) -> None:
        """Create a pod, and wait until it trains."""
        annotations = {options.RESTART: options.IN_PLACE, options.MAX_RESTARTS: "1000000"}
        made = launched.manifest(
            name,
            node=self._dev.name,
            options=_OPTIONS,
            program=_PROGRAM,
            gpus=1,
            restart_policy="Always",
            sidecar=False,
            annotations=annotations,
        )
        await self.observer.create(made)
        await self.observer.until(
            name,
            lambda seen: seen.phase == "Running" and seen.step > 0,
            timeout=SECONDS,
            what=f"{name} training",
        )
        (gpu,) = await self._dev.kubelet.devices_of(name)
        self._gpus[name] = self._dev.gpu_uuids.index(gpu)

    async def replace(self, name: str) -> None:
        """Delete a pod, wait until kubelet has released its GPU, and create another one."""
        await self.observer.delete(name)
        async with asyncio.timeout(SECONDS):
            while await self._dev.kubelet.devices_of(name):  # noqa: ASYNC110 - the API has no watch
                await asyncio.sleep(_LOOK_AGAIN)
        await self.create(name)

    async def main(self, name: str) -> tuple[ContainerId, int] | None:
        """Return the container that runs in a pod, and its main process; None if there is none, or several."""
        running = (await self.observer.see(name)).running.get("trainer", ())
        if len(running) != 1:
            return None
        pid = (await self.rig.cri.container_status(running[0])).pid
        return (running[0], pid) if pid else None

    async def state(self, name: str) -> str:
        """Return the state that a pod's launcher reports."""
        found = await self.main(name)
        if found is None:
            return "none"
        address = exchange.LauncherAddress(found[1], found[0], launched.CACHE, Path("/proc"))
        first = functools.partial(exchange.in_states, frozenset[process.State]())
        ask = functools.partial(
            exchange.exchange, address, process.STATUS_REQUEST, passing=first, timeout=1.0, least=1.0
        )
        try:
            return (await asyncio.to_thread(ask)).state.value
        except exchange.NoAnswerError:
            return "silent"

    async def now(self, name: str) -> Now:
        """Return the state of a pod."""
        seen = await self.observer.see(name)
        found = await self.main(name)
        return await asyncio.to_thread(_now, seen, self.observer.volume(seen.uid), found[1] if found else None)

    def strike(self, fault: Fault, name: str, pid: int) -> None:
        """Have a pod's program ``pid`` get a fault."""
        if fault is Fault.XID:
            pci = nvml_control.kernel_address(self._gpus[name])
            self._dev.kernel_log.write_xid(31, pci=pci, pid=pid, name="python")
        else:
            os.kill(pid, signal.SIGUSR1 if fault is Fault.EXIT else signal.SIGKILL)

    async def left(self, hits: Mapping[str, int]) -> str:
        """Return what is left to do; empty: nothing."""
        for name in PODS:
            now = await self.now(name)
            if len(now.programs) != 1:
                return f"{len(now.programs)} programs run in {name}"
            if now.programs[0] == hits.get(name):
                return f"the program of {name} that got the fault still runs"
            if (state := await self.state(name)) != process.State.RUNNING.value:
                return f"the launcher of {name} is {state}"
        if entries := self._journal.open_entries():
            return f"{len(entries)} restarts are open in the journal"
        if not (await readyz.report(self._agent.metrics_address))["ready"]:
            return "the agent is not ready"
        return ""

    def agents_log(self, *, offset: int) -> Sequence[str]:
        """Return the agents' log from this offset on."""
        with self._agent.log.open() as file:
            file.seek(offset)
            return [line.rstrip() for line in file]

    def log_size(self) -> int:
        """Return the length of the agents' log."""
        return self._agent.log.stat().st_size

    async def forget_agent(self) -> None:
        """Start an agent without any state, after a run that did not end."""
        await self.kill_agent()
        shutil.rmtree(self._state_dir)
        await self.start_agent()


def _now(seen: Seen, volume: Path, main: int | None) -> Now:
    lives = volume / "lives"
    return Now(
        uid=seen.uid,
        step=seen.step,
        lives=[int(each) for each in lives.read_text().split()] if lives.exists() else [],
        overlaps=_lines(volume / trainer.OVERLAPS),
        programs=launched.programs(main) if main is not None else [],
        beside_frozen=_lines(volume / _FROZEN),
    )


def _lines(path: Path) -> int:
    return len(path.read_text().split()) if path.exists() else 0


class Runs:
    """Make the runs, and count."""

    def __init__(self, scene: Scene) -> None:
        self.tally = Tally()
        self._scene = scene

    async def until_ready(self) -> None:
        """Wait until nothing is left to do. An agent that has never run ignores faults from before its start."""
        if left := await self._until_quiet({}):
            raise click.ClickException(left)

    async def make(self, plan: Plan) -> None:
        """Make one run."""
        scene, tally = self._scene, self.tally
        offset = scene.log_size()
        before = {name: await scene.now(name) for name in PODS}
        hits = {blow.pod: before[blow.pod].programs[0] for blow in plan.blows}
        for blow in plan.blows:
            scene.strike(blow.fault, blow.pod, hits[blow.pod])
            tally.faults[blow.fault.value] += 1
        kills = [self._kill_launcher(blow, hits[blow.pod]) for blow in plan.blows if blow.launcher_killed is not None]
        began = time.monotonic()
        await asyncio.gather(self._kill_agent(plan), *kills)
        left = await self._until_quiet(hits)
        tally.recoveries.append(time.monotonic() - began)
        for name in PODS:
            await self._judge(plan, before[name], name, hits.get(name), left=left, offset=offset)
        if left:
            await scene.forget_agent()
        for blow in plan.blows:
            if left or blow.launcher_killed is not None:
                await scene.replace(blow.pod)
        await self.until_ready()
        tally.runs += 1

    async def _kill_agent(self, plan: Plan) -> None:
        if plan.agent_killed is None:
            return
        await asyncio.sleep(plan.agent_killed)
        await self._scene.kill_agent()
        for blow in plan.blows:
            self.tally.agent_kills[await self._scene.state(blow.pod)] += 1
        await asyncio.sleep(plan.away)
        await self._scene.start_agent()

    async def _kill_launcher(self, blow: Blow, hit: int) -> None:
        assert blow.launcher_killed is not None
        await asyncio.sleep(blow.launcher_killed)
        found = await self._scene.main(blow.pod)
        if found is None:  # its container is being replaced
            self.tally.launcher_kills["none"] += 1
            return
        programs = await asyncio.to_thread(launched.programs, found[1])
        found_programs = "old_runs" if hit in programs else "new_runs" if programs else "none_runs"
        with contextlib.suppress(ProcessLookupError):
            os.kill(found[1], signal.SIGKILL)
        self.tally.launcher_kills[found_programs] += 1

    async def _until_quiet(self, hits: Mapping[str, int]) -> str:
        deadline = time.monotonic() + SECONDS
        while (left := await self._scene.left(hits)) and time.monotonic() < deadline:  # noqa: ASYNC110 - no one event
            await asyncio.sleep(_LOOK_AGAIN)
        return left

    async def _judge(self, plan: Plan, before: Now, name: str, hit: int | None, *, left: str, offset: int) -> None:
        after = await self._scene.now(name)
        self.tally.beside_frozen += after.beside_frozen - before.beside_frozen
        blow = next((each for each in plan.blows if each.pod == name), None)
        wrong = judge(before, after, blow, hit=hit) | ({Wrong.UNSETTLED} if left and blow else set())
        if not wrong:
            return
        self.tally.wrong.update(wrong)
        case = {
            "pod": name,
            "wrong": sorted(each.value for each in wrong),
            "plan": str(plan),
            "left": left,
            "before": str(before),
            "after": str(after),
            "log": [line for line in self._scene.agents_log(offset=offset) if name in line][-_LOG_LINES:],
        }
        self.tally.cases.append(case)
        log.error("launched.wrong", **case)


async def run(*, runs: int, seed: int) -> tuple[dict[str, Any], bool]:
    """Make that many runs on a node of their own; return the figures, and whether there was no violation."""
    began = time.monotonic()
    async with node.DevNode.named("launched", options=node.Options(gpus=len(PODS))) as dev, Scene.on(dev) as scene:
        work = Runs(scene)
        await work.until_ready()
        for plan in early_end.until_signal(draw(PODS, count=runs, seed=seed)):
            await work.make(plan)
    made = {"seed": seed, **work.tally.figures(), "seconds": round(time.monotonic() - began)}
    return made, not work.tally.cases


@click.command(help=__doc__)
@click.option("--runs", type=click.IntRange(min=1), default=500, show_default=True, help="Runs, each with a kill.")
@click.option("--seed", type=int, help="Seed of the plans, to repeat them; random by default.")
def main(runs: int, seed: int | None) -> None:
    """Run and print."""
    logs.configure(level="error", log_format="json")
    chosen = seed if seed is not None else random.randrange(2**32)
    click.echo(f"seed {chosen}", err=True)
    made, flawless = asyncio.run(run(runs=runs, seed=chosen))
    click.echo(json.dumps(made, indent=2))
    sys.exit(0 if flawless else 1)


if __name__ == "__main__":
    main()
