"""A Job and its pods as the Job controller judges them: what has succeeded, what has failed, and whether it ends. Pure.

Source: ``syncJob`` in pkg/controller/job of Kubernetes 1.36.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from common.kube import timestamps
from hack.devnode.jobcontroller import failure_policy, indexes, pods

Json = Mapping[str, Any]


class Facts:
    """An Indexed Job that has not finished. ``status`` is what its status is to be, worked on by who uses it."""

    def __init__(self, job: Json, found: Sequence[Json], *, counted: AbstractSet[str], now: float) -> None:
        """``found`` are the pods that it controls, ``counted`` the UIDs of those that its status counts already."""
        self.job, self.spec, self.found = job, job["spec"], found
        self.now = now
        self.status: dict[str, Any] = {**(job.get("status") or {})}
        self.completions = int(self.spec["completions"])
        self.per_index: int | None = self.spec.get("backoffLimitPerIndex")
        self.only_failed = self.spec.get("podReplacementPolicy") == "Failed" or bool(self.spec.get("podFailurePolicy"))
        self.active = [each for each in found if pods.is_active(each)]
        self.terminating = [each for each in found if pods.is_terminating(each)]
        self.new = [
            each
            for each in found
            if pods.is_tracked(each)
            and each["metadata"]["uid"] not in counted
            and 0 <= pods.index(each) < self.completions
        ]
        self.failed = [each for each in self.new if self.has_failed(each)]
        self.verdicts = {each["metadata"]["uid"]: failure_policy.judge(job, each) for each in self.new}
        self.succeeded = self._indexes("completedIndexes") | {
            pods.index(each) for each in self.new if pods.phase(each) == "Succeeded"
        }
        self.failed_indexes = self._failed_indexes()

    def end(self) -> tuple[str, str, str] | None:
        """Return type, reason and message of the condition that announces the Job's end; None: it goes on."""
        for kind in ("SuccessCriteriaMet", "FailureTarget"):
            if (told := condition(self.job, kind)) is not None and told["status"] == "True":
                return kind, told.get("reason", ""), told.get("message", "")
        for each in self.found:
            if self.has_failed(each) and (verdict := failure_policy.judge(self.job, each)).action == "FailJob":
                return "FailureTarget", "PodFailurePolicy", verdict.message
        counted = self.status.get("failed", 0) + sum(self.counts(each) for each in self.failed)
        if counted > self.spec["backoffLimit"] or self._restarted_too_often():
            return "FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        if (left := self.deadline()) is not None and left <= 0:
            return "FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline"
        if self.per_index is not None and (reason := self._too_many_indexes()):
            return "FailureTarget", *reason
        if len(self.succeeded) >= self.completions and not self.active:
            return "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"
        return None

    def _too_many_indexes(self) -> tuple[str, str] | None:
        most, failed = self.spec.get("maxFailedIndexes"), len(self.failed_indexes)
        if most is not None and failed > most:
            told = "Job has exceeded the specified maximal number of failed indexes"
            return "MaxFailedIndexesExceeded", told
        if failed and failed + len(self.succeeded) >= self.completions:
            return "FailedIndexes", "Job has failed indexes"
        return None

    def _restarted_too_often(self) -> bool:
        """Whether the containers of pods with OnFailure have used the limit up (``pastBackoffLimitOnFailure``)."""
        if self.spec["template"]["spec"].get("restartPolicy") != "OnFailure":
            return False
        restarts = sum(pods.restarts(each) for each in self.found if pods.phase(each) in ("Running", "Pending"))
        limit = self.spec["backoffLimit"]
        return restarts > 0 if limit == 0 else restarts >= limit

    def deadline(self) -> float | None:
        """Return the seconds that are left of activeDeadlineSeconds."""
        allowed, began = self.spec.get("activeDeadlineSeconds"), self.status.get("startTime")
        if allowed is None or began is None or self.spec.get("suspend"):
            return None
        return float(timestamps.unix(began)) + float(allowed) - self.now

    def wanted(self) -> int:
        """Return how many pods may run."""
        return max(min(self.completions - len(self.succeeded), int(self.spec["parallelism"])), 0)

    def counts(self, pod: Json) -> bool:
        """Whether the failure of a pod that is not counted yet counts."""
        return self.verdicts[pod["metadata"]["uid"]].counts

    def has_failed(self, pod: Json) -> bool:
        """Whether a pod counts as failed; one that ends does at once, unless it is only replaced when it has."""
        ends = pods.is_deleting(pod) and pods.phase(pod) != "Succeeded" and not self.only_failed
        return pods.phase(pod) == "Failed" or ends

    def _failed_indexes(self) -> AbstractSet[int]:
        if self.per_index is None:
            return frozenset()
        new = set()
        for each in self.failed:
            verdict = self.verdicts[each["metadata"]["uid"]]
            if verdict.action == "FailIndex" or (verdict.counts and pods.failures(each) >= self.per_index):
                new.add(pods.index(each))
        return self._indexes("failedIndexes") | new

    def _indexes(self, name: str) -> frozenset[int]:
        return indexes.parse((self.job.get("status") or {}).get(name) or "", completions=self.completions)

    def releasable(self, besides: Any = ()) -> tuple[Json, ...]:
        """Return the pods that need not be counted any more; of a Job that is deleted these are all."""
        tracked = [each for each in self.found if pods.is_tracked(each)]
        if pods.is_deleting(self.job):
            return tuple(tracked)
        return tuple(each for each in tracked if (pods.is_over(each) or self.has_failed(each)) and each not in besides)


def condition(told: Json, kind: str) -> Json | None:
    """Return a condition of a Job, or of a Job's status; None where it has none of that type."""
    conditions = (told["status"] if "status" in told and "spec" in told else told).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind), None)
