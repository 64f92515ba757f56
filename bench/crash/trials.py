"""Inject faults, kill the agent at a random moment, start it again, and check everything once the node is quiet."""

import asyncio
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from bench import early_end
from bench.crash import judging, paces, plans, stages
from bench.crash.blows import Blows
from bench.crash.judging import Now, Violation
from bench.crash.plans import Pace, Plan
from bench.crash.scene import Scene
from bench.crash.stages import Injected
from bench.crash.tally import Case, Recovery, Tally

log = structlog.get_logger(__name__)

_FIRST_RECOVERY = 2.0
_RECENT = 20
_LOG_LINES = 40


@dataclass
class Trial:
    """Hold a plan in progress. ``before`` is the state of the pods; ``found`` has the stages that each kill hit."""

    plan: Plan
    before: Mapping[str, Now]
    began: float
    log_offset: int
    faults: Sequence[Injected] = ()
    kills: int = 0
    found: list[str] = field(default_factory=list)


class Trials:
    """Run trials on a scene, and count."""

    def __init__(self, scene: Scene) -> None:
        self.tally = Tally()
        self.paces: Mapping[str, Pace] = {}
        self._scene = scene
        self._blows = Blows(dev=scene.dev, rig=scene.rig, witness=scene.witness, gpus=scene.gpus)

    async def run(self, *, count: int, seed: int, rounds: int) -> None:
        """Measure restarts in ``rounds`` rounds, then make ``count`` trials with the plans of the seed."""
        self.paces = await paces.measure(self._scene, self._blows, rounds=rounds)
        for plan in early_end.until_signal(plans.draw(self._scene.subjects, count=count, seed=seed)):
            await self._one(plan)
            self.tally.runs += 1

    def figures(self) -> dict[str, Any]:
        """Return the printed figures."""
        return self.tally.figures(paces=self.paces)

    async def _one(self, plan: Plan) -> None:
        scene = self._scene
        scene.witness.turn_page()
        before = {subject.name: await scene.witness.look(subject) for subject in scene.subjects}
        trial = Trial(plan, before, began=time.time(), log_offset=scene.agents_log.stat().st_size)
        trial.faults = await self._blows.strike(plan, paces=self.paces)
        self.tally.faults += len(trial.faults)
        await self._kill(trial)
        await asyncio.sleep(plan.away)
        began = asyncio.get_running_loop().time()
        await scene.start_agent()
        if plan.again is not None:
            await asyncio.sleep(plan.again * self._usual_recovery())
            await self._kill(trial)
            began = asyncio.get_running_loop().time()
            await scene.start_agent()
        left = await scene.quiet(trial.faults)
        took = asyncio.get_running_loop().time() - began
        self.tally.recoveries.append(Recovery(took, plan=str(plan), found=tuple(trial.found)))
        await self._judge(trial, left)

    def _usual_recovery(self) -> float:
        latest = [recovery.seconds for recovery in self.tally.recoveries[-_RECENT:]]
        return statistics.median(latest or [_FIRST_RECOVERY])

    async def _kill(self, trial: Trial) -> None:
        """Kill the agent and record what it has left behind."""
        scene = self._scene
        for fault in trial.faults:
            scene.witness.note(fault.subject, "agent killed")
        await scene.kill_agent()
        entries = scene.journal.entries(since=min(fault.at for fault in trial.faults))
        hit = []
        for fault in trial.faults:
            uid = scene.witness.pod(fault.subject).ref.uid
            views = await scene.rig.cri.list_containers(pod_uid=uid)
            hit.append((fault.subject.name, stages.stage(fault, entries=entries, views=views)))
            await self._note_frozen(fault)
        self.tally.killed(hit, in_recovery=trial.kills > 0)
        trial.kills += 1
        trial.found += [f"kill {trial.kills}: {name} {stage.value}" for name, stage in hit]

    async def _note_frozen(self, fault: Injected) -> None:
        """Record which of the pod's old containers are frozen; they stay frozen while the agent is dead."""
        witness = self._scene.witness
        now = await witness.look(fault.subject)
        for view in itertools.chain.from_iterable(now.running.values()):
            if view.id in now.frozen and not fault.is_older_than(view):
                witness.stood_still(fault.subject, view.id)

    async def _judge(self, trial: Trial, left: Iterable[Violation]) -> None:
        """Check every pod once more; record violations, and replace spoilt pods."""
        scene = self._scene
        wrong: defaultdict[str, list[Violation]] = defaultdict(list)
        for violation in left:
            wrong[violation.pod].append(violation)
        for subject in scene.subjects:
            now = await scene.witness.look(subject)
            faults = [fault for fault in trial.faults if fault.subject == subject]
            before, since = trial.before[subject.name], trial.began
            self.tally.overlaps.update(what for _, what in judging.overlaps(now, before=before, since=since))
            for violation in judging.wrongs(now, before=before, since=since, faults=faults, kills=trial.kills):
                wrong[subject.name].append(violation)
        for pod, violations in wrong.items():
            case = self._case(trial, pod, violations)
            self.tally.cases.append(case)
            log.error("crash.wrong", **case.figures())
        if wrong:
            await self._repair(wrong.keys())

    async def _repair(self, spoilt: Collection[str]) -> None:
        """Replace spoilt pods, and an agent that did not become quiet."""
        scene = self._scene
        await scene.replace(subject for subject in scene.subjects if subject.name in spoilt)
        if "" in spoilt:
            await scene.forget_agent()
        await scene.quiet()

    def _case(self, trial: Trial, pod: str, violations: Sequence[Violation]) -> Case:
        """Gather the evidence; a violation of the agent concerns all pods that were hit."""
        scene = self._scene
        hit = {fault.subject.name for fault in trial.faults}
        names = {pod} if pod else hit
        timelines = [
            line for subject in scene.subjects if subject.name in names for line in scene.witness.timeline(subject)
        ]
        with scene.agents_log.open() as log:
            log.seek(trial.log_offset)
            said = [line.rstrip() for line in log if any(f"default/{name}" in line for name in names)]
        return Case(
            pod=pod,
            violations=violations,
            plan=str(trial.plan),
            found=tuple(trial.found),
            timeline=tuple(sorted(timelines)),
            log=tuple(said[-_LOG_LINES:]),
        )
