"""Have trainers die of their fault by themselves while the agent restarts them, many times over.

CUDA reports an error to the program some 16 to 350 ms after the kernel's line, so a program exits while the agent acts
on the line. Pods of every restartPolicy, with a sidecar and alone, run on one node under the real kubelet. Each run
writes an Xid that names one trainer's process, and has the trainer exit with an error at a random moment around it.
Afterwards exactly one successor must have run, created by the agent, without a moment in which two trainers ran, and
neither a failed pod nor CrashLoopBackOff may have been shown.

Two things are beyond reach, and are counted apart. What kubelet does because it sees the exit before a successor could
prevent that: it creates its own container, which the agent adopts, shows CrashLoopBackOff in a pod with a backoff, and
fails a ``Never`` pod. And the agent leaves a ``Never`` container alone that has exited before the fault.

Prints JSON, after Ctrl-C that of the runs so far: violations by kind and pod, those beyond reach, how often the trainer
died by itself before it was killed, and the time from the line to the successor. Exits with 1 if there was a violation
within reach. Past restarts are moved back in time, so no budget delays one. Kubelet's own backoff is left as it is: it
lasts ten minutes in a pod in which kubelet has started a container.
"""

import asyncio
import contextlib
import enum
import json
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import structlog

from bench import early_end, figures
from bench.crash import judging, subjects
from bench.crash.blows import Blows
from bench.crash.judging import Life, Now, Overlap, Violation
from bench.crash.plans import Fault
from bench.crash.scene import Scene
from bench.crash.stages import Injected
from bench.crash.subjects import Subject
from bench.rig import SECONDS
from hack.devnode import node
from kubemend.common import logs
from kubemend.common.kube import client as kube
from kubemend.common.kube import informer, paths
from kubemend.common.kube.transport import Json

log = structlog.get_logger(__name__)

SUBJECTS = tuple(
    Subject(f"{policy.lower()}{'' if sidecar else '-alone'}", policy=policy, sidecar=sidecar, dies=True)
    for policy in ("Always", "OnFailure", "Never")
    for sidecar in (True, False)
)

_EARLIEST, _LATEST = -0.05, 0.4
"""Seconds from the kernel's line to the signal on which the trainer exits."""
_TRAINER = "trainer"
_LOOK_AGAIN = 0.05
_FAILS_SECONDS = 5.0
"""Seconds within which kubelet shows a pod as failed whose exit it has seen: it ends the other containers before."""
_LOG_LINES = 30


class Wrong(enum.Enum):
    """Name the kinds of violations, each with its place in the figures."""

    FAILED = "pod_failed"
    LOST = "no_successor"
    TWO_RAN = "two_ran"
    COUNT = "restart_count_wrong"
    BY_KUBELET = "successor_by_kubelet"
    CRASH_LOOP = "crash_loop_back_off"
    UNSETTLED = "unsettled"


@dataclass(frozen=True, slots=True)
class Plan:
    """Describe one run: when the trainer exits, in seconds from the kernel's line."""

    number: int
    subject: Subject
    exits_after: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Hold the observations of one run. ``lives`` are the trainers: the old one first, then those created since.

    ``waited`` are the reasons for which kubelet showed the trainer as waiting. ``died``: the trainer exited by itself,
    before it was killed.
    """

    plan: Plan
    line_at: float
    before: Now
    after: Now
    lives: Sequence[Life]
    waited: Collection[str]
    died: bool = True
    left: Sequence[str] = ()

    @property
    def successors(self) -> Sequence[Life]:
        """Return the trainers after the old one that have run."""
        return [life for life in self.lives[1:] if life.began is not None]

    @property
    def beyond_reach(self) -> frozenset[Wrong]:
        """Return what may follow from an exit before a successor could prevent that.

        The next name is the agent's if its container was created before kubelet's; a container that was created and has
        not run prevents nothing else.
        """
        old, *new = self.lives
        if not self.died or any(
            life.ours and life.began is not None and life.began <= (old.ended or 0) for life in new
        ):
            return frozenset()
        lost = {Wrong.FAILED, Wrong.LOST} if self.plan.subject.policy == "Never" else set()
        adopted = {Wrong.BY_KUBELET} if new and not new[0].ours else set()
        return frozenset({Wrong.CRASH_LOOP, *lost, *adopted})

    @property
    def took(self) -> float | None:
        """Return the seconds from the kernel's line to the last successor's start; None without one."""
        began = [life.began for life in self.successors if life.began is not None]
        return began[-1] - self.line_at if began else None


def draw(chosen: Sequence[Subject], *, count: int, seed: int) -> Iterator[Plan]:
    """Return ``count`` runs, the pods in turn."""
    chance = random.Random(seed)
    turns: list[Subject] = []
    for number in range(1, count + 1):
        turns = turns or chance.sample(chosen, k=len(chosen))
        yield Plan(number, turns.pop(), exits_after=chance.uniform(_EARLIEST, _LATEST))


def judge(outcome: Outcome) -> frozenset[Wrong]:
    """Return the violations of a run."""
    before, after = outcome.before, outcome.after
    found = set()
    if any(phase not in (judging.RUNNING, "Pending") for phase in after.phases[len(before.phases) :]):
        found.add(Wrong.FAILED)
    if not outcome.successors:
        found.add(Wrong.LOST)
    else:
        if not outcome.successors[-1].ours:
            found.add(Wrong.BY_KUBELET)
        if after.restart_counts[_TRAINER] != before.restart_counts[_TRAINER] + 1:
            found.add(Wrong.COUNT)
    met = [what for _, what in judging.overlaps(after, before=before, since=outcome.line_at)]
    if any(what is not Overlap.HELD for what in met) or any(
        one.beside(other) for one in outcome.successors for other in outcome.successors
    ):
        found.add(Wrong.TWO_RAN)
    if "CrashLoopBackOff" in outcome.waited:
        found.add(Wrong.CRASH_LOOP)
    if outcome.left and not found & {Wrong.FAILED, Wrong.LOST}:
        found.add(Wrong.UNSETTLED)
    return frozenset(found)


@dataclass
class Tally:
    """Count runs and violations."""

    runs: Counter[str] = field(default_factory=Counter)
    wrong: Counter[tuple[str, Wrong]] = field(default_factory=Counter)
    beyond_reach: Counter[tuple[str, Wrong]] = field(default_factory=Counter)
    by_itself: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cases: list[dict[str, Any]] = field(default_factory=list)

    def add(self, outcome: Outcome, *, evidence: Sequence[str]) -> None:
        """Count a run."""
        name = outcome.plan.subject.name
        wrong = judge(outcome)
        self.runs[name] += 1
        self.by_itself[name] += outcome.died
        if outcome.took is not None:
            self.seconds[name].append(outcome.took)
        self.wrong.update((name, kind) for kind in wrong - outcome.beyond_reach)
        self.beyond_reach.update((name, kind) for kind in wrong & outcome.beyond_reach)
        if wrong:
            case = {
                "pod": name,
                "run": outcome.plan.number,
                "wrong": sorted(kind.value for kind in wrong - outcome.beyond_reach),
                "beyond_reach": sorted(kind.value for kind in wrong & outcome.beyond_reach),
                "exits_after_ms": round(outcome.plan.exits_after * 1000),
                "evidence": list(evidence),
            }
            self.cases.append(case)
            log.error("dying.wrong", **case)

    @property
    def flawless(self) -> bool:
        """Return whether runs were made, without a violation within reach."""
        return bool(self.runs) and not self.wrong

    def figures(self) -> dict[str, Any]:
        """Return the printed figures."""
        return {
            "runs": self.runs.total(),
            "died_by_itself": self.by_itself.total(),
            **{kind.value: sum(self.wrong[name, kind] for name in self.runs) for kind in Wrong},
            "beyond_reach": {
                kind.value: found
                for kind in Wrong
                if (found := sum(self.beyond_reach[name, kind] for name in self.runs))
            },
            "pods": {
                name: {
                    "runs": runs,
                    "died_by_itself": self.by_itself[name],
                    "wrong": {kind.value: self.wrong[name, kind] for kind in Wrong if self.wrong[name, kind]},
                    "beyond_reach": {
                        kind.value: self.beyond_reach[name, kind] for kind in Wrong if self.beyond_reach[name, kind]
                    },
                    "line_to_successor_ms": figures.milliseconds(self.seconds[name]) if self.seconds[name] else None,
                }
                for name, runs in sorted(self.runs.items())
            },
            "cases": self.cases,
        }


class Waiting:
    """Follow the reasons for which kubelet shows trainers as waiting."""

    def __init__(self) -> None:
        self._reasons: defaultdict[str, set[str]] = defaultdict(set)

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, dev: node.DevNode) -> AsyncIterator["Waiting"]:
        """Watch a node's pods as long as the block runs."""
        made = cls()
        async with kube.connect(kubeconfig=dev.layout.kubeconfig) as api:
            mirror: informer.Informer[None] = informer.Informer(
                api=api, path=paths.PODS, reduce=made._take, report=lambda _: None
            )
            task = asyncio.create_task(mirror.run(), name="waiting")
            try:
                await mirror.wait_synced()
                yield made
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def turn_page(self) -> None:
        """Forget the observations."""
        self._reasons.clear()

    def of(self, pod: str) -> frozenset[str]:
        """Return the reasons that were shown for a pod's trainer since ``turn_page``."""
        return frozenset(self._reasons[pod])

    def _take(self, pod: Json) -> None:
        for status in pod.get("status", {}).get("containerStatuses", ()):
            reason = status.get("state", {}).get("waiting", {}).get("reason")
            if status["name"] == _TRAINER and reason:
                self._reasons[pod["metadata"]["name"]].add(reason)


class Deaths:
    """Make runs on a scene, and count."""

    def __init__(self, scene: Scene, waiting: Waiting) -> None:
        self.tally = Tally()
        self._scene = scene
        self._waiting = waiting
        self._blows = Blows(dev=scene.dev, rig=scene.rig, witness=scene.witness, gpus=scene.gpus)

    async def run(self, *, count: int, seed: int) -> None:
        """Make ``count`` runs with the moments of the seed."""
        for plan in early_end.until_signal(draw(self._scene.subjects, count=count, seed=seed)):
            if (plan.number - 1) % len(self._scene.subjects) == 0:
                await self._scene.renew_agent()
            await self._scene.quiet()
            await self._one(plan)

    async def _one(self, plan: Plan) -> None:
        scene, subject = self._scene, plan.subject
        scene.witness.turn_page()
        self._waiting.turn_page()
        before = await scene.witness.look(subject)
        log_offset = scene.agents_log.stat().st_size
        fault = await self._strike(plan)
        left = await self._settled(fault)
        after = await scene.witness.look(subject)
        lives = scene.witness.lives(subject, _TRAINER)
        outcome = Outcome(
            plan=plan,
            line_at=fault.at,
            before=before,
            after=after,
            lives=(
                lives[fault.old],
                *sorted((lives[each] for each in lives if each != fault.old), key=lambda life: life.created),
            ),
            waited=self._waiting.of(subject.name),
            died=self._died(fault),
            left=[f"{each.pod}: {each.wrong.value}: {each.detail}" for each in left],
        )
        evidence = [*sorted(scene.witness.timeline(subject)), *outcome.left, *self._said(log_offset, subject)]
        self.tally.add(outcome, evidence=evidence)
        if left:
            spoilt = {subject.name, *(each.pod for each in left)}
            await scene.replace(each for each in scene.subjects if each.name in spoilt)

    async def _strike(self, plan: Plan) -> Injected:
        """Write the line and have the trainer exit, in either order. Raises CriError."""
        subject = plan.subject
        (old,) = self._scene.witness.now(subject).running[_TRAINER]
        pidfd = os.pidfd_open(await self._scene.rig.observer.pid(old.id))
        try:
            first = asyncio.get_running_loop().time() + 0.1
            fault, _ = await asyncio.gather(
                self._blows.inject(Fault(subject, _TRAINER, lead=0.0), after=0.1 + max(0.0, -plan.exits_after)),
                self._exit(subject, pidfd, at=first + max(0.0, plan.exits_after)),
            )
        finally:
            os.close(pidfd)
        return fault

    async def _exit(self, subject: Subject, pidfd: int, *, at: float) -> None:
        await asyncio.sleep(at - asyncio.get_running_loop().time())
        with contextlib.suppress(ProcessLookupError):  # killed before
            signal.pidfd_send_signal(pidfd, subjects.DIES_OF)
        self._scene.witness.note(subject, "the trainer must exit now")

    async def _settled(self, fault: Injected) -> Sequence[Violation]:
        """Wait until a successor runs and the node is quiet, or the pod has failed; return what is left."""
        scene, subject = self._scene, fault.subject
        await self._until(
            lambda: any(view.id != fault.old for view in scene.witness.now(subject).running.get(_TRAINER, ())),
            subject,
            timeout=SECONDS,
        )
        if not self._has_failed(subject):
            left = await scene.quiet()
            if left or subject.policy != "Never" or not self._died(fault):
                return left
            await self._until(lambda: False, subject, timeout=_FAILS_SECONDS)
        return judging.unsettled(scene.witness.now(subject), [])

    async def _until(self, holds: Callable[[], bool], subject: Subject, *, timeout: float) -> None:
        """Wait until it holds or the pod has failed, at most ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not holds() and not self._has_failed(subject):
                    await self._scene.witness.change(timeout=_LOOK_AGAIN)

    def _has_failed(self, subject: Subject) -> bool:
        return self._scene.witness.now(subject).phases[-1:] == ("Failed",)

    def _died(self, fault: Injected) -> bool:
        """Return whether the trainer has exited by itself."""
        timeline = self._scene.witness.timeline(fault.subject)
        return any(f"({fault.old[:8]}, " in line and line.endswith(f"with {subjects.DIED}") for line in timeline)

    def _said(self, offset: int, subject: Subject) -> Sequence[str]:
        with self._scene.agents_log.open() as log:
            log.seek(offset)
            said = [line.rstrip() for line in log if f"default/{subject.name}/" in line]
        return said[-_LOG_LINES:]


async def dying(*, runs: int, seed: int, policies: Collection[str] = ()) -> tuple[dict[str, Any], bool]:
    """Make that many runs on a node of their own; return the figures, and whether no violation was within reach.

    ``policies``: the restart policies of the pods; empty: all.
    """
    began = time.monotonic()
    chosen = tuple(each for each in SUBJECTS if not policies or each.policy in policies)
    async with (
        node.DevNode.named("dying", options=node.Options(gpus=len(chosen))) as dev,
        Waiting.on(dev) as waiting,
        Scene.on(dev, subjects=chosen, state_dir=Path(dev.layout.agent_state)) as scene,
    ):
        deaths = Deaths(scene, waiting)
        await deaths.run(count=runs, seed=seed)
        kinds = dev.kinds
    made = {"node": kinds, "seed": seed, **deaths.tally.figures(), "seconds": round(time.monotonic() - began)}
    return made, deaths.tally.flawless


@click.command(help=__doc__)
@click.option("--runs", type=click.IntRange(min=1), default=200, show_default=True, help="Faults, each with an exit.")
@click.option("--seed", type=int, help="Seed of the moments, to repeat them; random by default.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(["Always", "OnFailure", "Never"]),
    help="Only pods of this restartPolicy; may be repeated.",
)
def main(runs: int, seed: int | None, policies: tuple[str, ...]) -> None:
    """Run and print."""
    logs.configure(level="error", log_format="json")
    chosen = seed if seed is not None else random.randrange(2**32)
    click.echo(f"seed {chosen}", err=True)
    made, flawless = asyncio.run(dying(runs=runs, seed=chosen, policies=policies))
    click.echo(json.dumps(made, indent=2))
    sys.exit(0 if flawless else 1)


if __name__ == "__main__":
    main()
