"""What one look of the Job controller at a Job comes to. Pure.

Source: ``syncJob``, ``manageJob`` and ``trackJobStatusAndRemoveFinalizers`` in pkg/controller/job of Kubernetes 1.36.
A pod is counted once: its finalizer goes after the status that counts it is written. Which were counted while their
finalizers are still there, the caller remembers; the real one writes that into the status, for it may be killed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from common.kube import timestamps
from hack.devnode.jobcontroller import failure_policy, indexes, pods
from hack.devnode.jobcontroller.facts import Facts, condition

Json = Mapping[str, Any]

SUSPENDED: Final = "Suspended"
TARGETS: Final = {"FailureTarget": "Failed", "SuccessCriteriaMet": "Complete"}
"""Conditions by which a Job announces its end, and those by which it has come."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, in this order: ``delete``, ``create``, the status, and then ``release`` (the finalizers).

    ``drop`` lose their finalizers before they are deleted, so that nobody counts them. ``again_in``: seconds, if
    creations must wait.
    """

    status: dict[str, Any]
    create: tuple[int, ...] = ()
    failed_before: Mapping[int, int] = field(default_factory=dict)
    delete: tuple[Json, ...] = ()
    drop: tuple[Json, ...] = ()
    release: tuple[Json, ...] = ()
    counted: frozenset[str] = frozenset()
    again_in: float | None = None


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a Job waits before it makes a pod anew: seconds, doubled by each failure since the last success."""

    first: float = 10.0
    limit: float = 600.0

    def wait(self, failures: int) -> float:
        """Return it."""
        return min(self.first * 2 ** min(failures - 1, 30), self.limit) if failures else 0.0


@dataclass(frozen=True, slots=True)
class Past:
    """What is remembered of a Job: pods that are counted already, and its failures since the last success."""

    counted: frozenset[str] = frozenset()
    failures: int = 0
    failed_at: float = 0.0


def is_finished(job: Json) -> bool:
    """Whether a Job has come to its end."""
    return any(_is(job, kind) for kind in TARGETS.values())


def sync(job: Json, found: Sequence[Json], *, past: Past, backoff: Backoff, now: float) -> Plan:
    """Return what is to be done for an Indexed Job that has not finished. ``found`` are the pods that it controls."""
    return _Look(job, sorted(found, key=pods.index), past=past, backoff=backoff, now=now).plan()


def remembered(past: Past, found: Sequence[Json], done: Plan) -> Past:
    """Return what is to be remembered after a plan was carried out."""
    here = {each["metadata"]["uid"] for each in found if pods.is_tracked(each)}
    new = [each for each in found if each["metadata"]["uid"] in done.counted - past.counted]
    failed = [pods.finished_at(each) for each in new if pods.phase(each) != "Succeeded"]
    failures, at = past.failures + len(failed), max([past.failed_at, *failed])
    if any(pods.phase(each) == "Succeeded" for each in new):
        failures, at = len(failed), max(failed, default=0.0)
    return Past(counted=frozenset((past.counted | done.counted) & here), failures=failures, failed_at=at)


class _Look(Facts):
    def __init__(self, job: Json, found: Sequence[Json], *, past: Past, backoff: Backoff, now: float) -> None:
        super().__init__(job, found, counted=past.counted, now=now)
        self.past, self.backoff = past, backoff

    def plan(self) -> Plan:
        if self.status.get("startTime") is None and not self.spec.get("suspend"):
            self.status["startTime"] = timestamps.rfc3339(self.now)
        if (end := self.end()) is not None:
            return self._ending(*end)
        if self.spec.get("suspend"):
            return self._suspended()
        return self._running()

    def _ending(self, kind: str, reason: str, message: str) -> Plan:
        """Delete what runs and count all there is; once nothing is left to wait for, the Job has ended."""
        is_failing = kind == "FailureTarget"
        over = [each for each in self.new if is_failing or pods.phase(each) == "Succeeded" or self.has_failed(each)]
        self._count(over, all_failed=is_failing)
        self._say(kind, reason=reason, message=message)
        tracked = [each for each in self.found if pods.is_tracked(each)]
        self._tell(active=0, ready=0, terminating=len(self.terminating) + len(self.active))
        if not self.active and not self.terminating and not tracked:
            self._say(TARGETS[kind], reason=reason, message=message)
            if not is_failing:
                self.status["completionTime"] = timestamps.rfc3339(self.now)
        return Plan(self.status, delete=tuple(self.active), release=tuple(tracked), counted=_uids(over))

    def _suspended(self) -> Plan:
        over = [each for each in self.new if pods.is_over(each)]
        self._count(over)
        self._say(SUSPENDED, reason="JobSuspended", message="Job suspended")
        self.status.pop("startTime", None)
        self._tell(active=0, ready=0, terminating=len(self.terminating) + len(self.active))
        return Plan(self.status, drop=tuple(self.active), release=self.releasable(), counted=_uids(over))

    def _running(self) -> Plan:
        delayed = self._delayed()
        over = [each for each in self.new if pods.phase(each) == "Succeeded" or each in self.failed]
        over = [each for each in over if each not in delayed.values()]
        surplus = self._surplus()
        create, again_in = ((), None) if surplus else self._missing(delayed)
        self._count(over)
        if (told := condition(self.job, SUSPENDED)) is not None and told["status"] == "True":
            self._say(SUSPENDED, reason="JobResumed", message="Job resumed", value="False")
            self.status["startTime"] = timestamps.rfc3339(self.now)
        kept = [each for each in self.active if each not in surplus]
        ready = sum(pods.is_ready(each) for each in kept)
        terminating = len(self.terminating) + len(surplus)
        self._tell(active=len(kept) + len(create), ready=ready, terminating=terminating)
        failed_before = {at: self._failed_before(delayed.get(at)) for at in create}
        return Plan(
            self.status,
            create=create,
            failed_before={} if self.per_index is None else failed_before,
            drop=tuple(surplus),
            release=self.releasable(besides=delayed.values()),
            counted=_uids(over),
            again_in=again_in if again_in is not None else self.deadline(),
        )

    def _surplus(self) -> list[Json]:
        """Return active pods that are too many: of an index that another pod has, of none, or beyond parallelism."""
        by_index: dict[int, Json] = {}
        rest: list[Json] = []
        for each in self.active:
            at = pods.index(each)
            if at in by_index or not 0 <= at < self.completions:
                rest.append(each)
            else:
                by_index[at] = each
        return rest + [by_index[at] for at in sorted(by_index)[self.wanted() :]]

    def _missing(self, delayed: Mapping[int, Json]) -> tuple[tuple[int, ...], float | None]:
        """Return the indexes to make pods for now, and in how many seconds there may be more."""
        blocked = len(self.terminating) if self.only_failed else 0
        count = self.wanted() - blocked - len(self.active)
        if pods.is_deleting(self.job) or count <= 0:
            return (), None
        taken = self.succeeded | self.failed_indexes | {pods.index(each) for each in self.active}
        if self.only_failed:
            taken |= {pods.index(each) for each in self.terminating}
        pending = [at for at in range(self.completions) if at not in taken][:count]
        if self.per_index is None:
            wait = self._wait()
            return ((), wait) if wait > 0 else (tuple(pending), None)
        waits = {at: self._wait_of(delayed.get(at)) for at in pending}
        ready = tuple(at for at, wait in waits.items() if wait <= 0)
        return ready, None if ready else min(waits.values(), default=None)

    def _wait(self) -> float:
        """Return the seconds until any pod may be made again, after failures."""
        new = [pods.finished_at(each) for each in self.failed]
        failures = self.past.failures + len(new)
        return max([self.past.failed_at, *new]) + self.backoff.wait(failures) - self.now if failures else 0.0

    def _wait_of(self, before: Json | None) -> float:
        if before is None:
            return 0.0
        return pods.finished_at(before) + self.backoff.wait(pods.failures(before) + 1) - self.now

    def _delayed(self) -> dict[int, Json]:
        """Return, by index, the failed pods that stay until their successors are there and count on."""
        if self.per_index is None:
            return {}
        taken = self.succeeded | self.failed_indexes | {pods.index(each) for each in self.active}
        return {pods.index(each): each for each in self.failed if pods.index(each) not in taken}

    def _failed_before(self, before: Json | None) -> int:
        if before is None:
            return 0
        return pods.failures(before) + failure_policy.judge(self.job, before).counts

    def _count(self, over: Sequence[Json], *, all_failed: bool = False) -> None:
        new = [each for each in over if pods.phase(each) != "Succeeded" and (all_failed or self.has_failed(each))]
        failed = self.status.get("failed", 0) + sum(self.counts(each) for each in new)
        if failed:
            self.status["failed"] = failed

    def _tell(self, *, active: int, ready: int, terminating: int) -> None:
        self.status |= {"ready": ready, "terminating": terminating}
        self._set("active", active)
        self._set("succeeded", len(self.succeeded))
        self._set("completedIndexes", indexes.render(self.succeeded))
        if self.per_index is not None:
            self.status["failedIndexes"] = indexes.render(self.failed_indexes)
        self.status["uncountedTerminatedPods"] = {}

    def _set(self, name: str, value: int | str) -> None:
        """Set a field that is left out when it says nothing."""
        self.status.pop(name, None)
        if value:
            self.status[name] = value

    def _say(self, kind: str, *, reason: str, message: str, value: str = "True") -> None:
        told = condition(self.status, kind)
        if told is not None and (told["status"], told.get("reason")) == (value, reason):
            return
        moment = timestamps.rfc3339(self.now)
        said = {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastProbeTime": moment,
            "lastTransitionTime": moment,
        }
        others = [each for each in self.status.get("conditions") or () if each["type"] != kind]
        self.status["conditions"] = [*others, said]


def _is(job: Json, kind: str) -> bool:
    told = condition(job, kind)
    return told is not None and told["status"] == "True"


def _uids(found: Sequence[Json]) -> frozenset[str]:
    return frozenset(each["metadata"]["uid"] for each in found)
