"""Parse the keywords of steps and their arguments. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.jobset.player import checked
from tests.jobset.player.model import (
    Action,
    Check,
    Create,
    Delete,
    FinishDeletions,
    JobState,
    Put,
    Relabel,
    RestartController,
    RoundBegins,
    RoundEnds,
    RoundRefused,
    Set,
    SetJobs,
    SetPods,
    WriteStatus,
)

_PODS: Final = ("succeed", "fail", "ready")
_FAILURES: Final = ("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "PodFailurePolicy")
_RESOURCES: Final = ("jobsets", "jobs", "services", "persistentvolumeclaims", "restarts")


def parse(name: str, value: Any, where: str) -> Action:
    """Return the action. Raises ScenarioError."""
    return ACTIONS[checked.one_of(name, where, ACTIONS)](value, where)


def _create(value: Any, where: str) -> Action:
    if value is None:
        return Create()
    given = checked.mapping(value, where, known=("refused",), required=("refused",))
    return Create(refused=checked.text(given["refused"], f"{where}.refused"))


def _state(state: JobState) -> Callable[[Any, str], Action]:
    def parse_state(value: Any, where: str) -> Action:
        return SetJobs(checked.texts(value, where), state)

    return parse_state


def _fail(value: Any, where: str) -> Action:
    if not isinstance(value, Mapping):
        return SetJobs(checked.texts(value, where), JobState.FAIL)
    given = checked.mapping(value, where, known=("jobs", "reason"), required=("jobs", "reason"))
    reason = checked.one_of(given["reason"], f"{where}.reason", _FAILURES)
    return SetJobs(checked.texts(given["jobs"], f"{where}.jobs"), JobState.FAIL, reason=reason)


def _pods(value: Any, where: str) -> Action:
    given = checked.mapping(value, where, known=("jobs", *_PODS), required=("jobs",))
    counts = {each: checked.whole(given.get(each, 0), f"{where}.{each}") for each in _PODS}
    return SetPods(checked.texts(given["jobs"], f"{where}.jobs"), **counts)


def _set(value: Any, where: str) -> Action:
    fields = dict(checked.mapping(value, where))
    refused = fields.pop("refused", "")
    for path in fields:
        if path.partition(".")[0] not in ("spec", "metadata"):
            raise checked.ScenarioError(where, what=f"{path!r} is not a field", hint="write such as spec.suspend: true")
    return Set(fields, refused=refused)


def _suspend(*, to: bool) -> Callable[[Any, str], Action]:
    def parse_suspend(value: Any, where: str) -> Action:
        _nothing(value, where)
        return Set({"spec.suspend": to})

    return parse_suspend


def _write_status(value: Any, where: str) -> Action:
    return WriteStatus(checked.mapping(value, where))


def _relabel(value: Any, where: str) -> Action:
    given = checked.mapping(value, where, known=("jobs", "labels"), required=("jobs", "labels"))
    jobs = checked.texts(given["jobs"], f"{where}.jobs")
    return Relabel(jobs, checked.mapping(given["labels"], f"{where}.labels"))


def _put(value: Any, where: str) -> Action:
    return Put(checked.mapping(value, where, required=("apiVersion", "kind", "metadata")))


def _delete(value: Any, where: str) -> Action:
    given = checked.mapping(value, where, known=_RESOURCES)
    if len(given) != 1:
        raise checked.ScenarioError(
            where, what="does not name exactly one resource", hint="write such as {services: [js]}"
        )
    ((resource, names),) = given.items()
    return Delete(resource, checked.texts(names, f"{where}.{resource}"))


def _delete_jobset(value: Any, where: str) -> Action:
    _nothing(value, where)
    return Delete("jobsets")


def _finish_deletions(value: Any, where: str) -> Action:
    return FinishDeletions(checked.texts(value, where))


def _round_begins(value: Any, where: str) -> Action:
    given = checked.mapping(value, where, known=("attempt", "counted", "message", "at"), required=("attempt",))
    return RoundBegins(
        checked.whole(given["attempt"], f"{where}.attempt"),
        counted=checked.flag(given.get("counted", True), f"{where}.counted"),
        message=checked.text(given.get("message", "a fault"), f"{where}.message"),
        at=checked.number(given["at"], f"{where}.at") if "at" in given else None,
    )


def _round_ends(value: Any, where: str) -> Action:
    known = ("attempt", "phase", "seconds", "reason", "message")
    given = checked.mapping(value, where, known=known, required=("attempt",))
    return RoundEnds(
        checked.whole(given["attempt"], f"{where}.attempt"),
        phase=checked.one_of(given.get("phase", "Done"), f"{where}.phase", ("Done", "Degraded", "Failed")),
        seconds=checked.number(given.get("seconds", 0.4), f"{where}.seconds"),
        reason=str(given.get("reason", "")),
        message=str(given.get("message", "")),
    )


def _round_refused(value: Any, where: str) -> Action:
    given = checked.mapping(value, where, known=("reason", "message"), required=("reason",))
    return RoundRefused(checked.text(given["reason"], f"{where}.reason"), str(given.get("message", "")))


def _restart_controller(value: Any, where: str) -> Action:
    _nothing(value, where)
    return RestartController()


def _check(value: Any, where: str) -> Action:
    _nothing(value, where)
    return Check()


def _nothing(value: Any, where: str) -> None:
    if value is not None:
        raise checked.ScenarioError(where, what="needs no value", hint="leave it out")


ACTIONS: Final[Mapping[str, Callable[[Any, str], Action]]] = {
    "create": _create,
    "active": _state(JobState.ACTIVE),
    "ready": _state(JobState.READY),
    "complete": _state(JobState.COMPLETE),
    "stopped": _state(JobState.STOPPED),
    "fail": _fail,
    "pods": _pods,
    "set": _set,
    "suspend": _suspend(to=True),
    "resume": _suspend(to=False),
    "write-status": _write_status,
    "relabel": _relabel,
    "put": _put,
    "delete": _delete,
    "delete-jobset": _delete_jobset,
    "finish-deletions": _finish_deletions,
    "round-begins": _round_begins,
    "round-ends": _round_ends,
    "round-refused": _round_refused,
    "restart-controller": _restart_controller,
    "check": _check,
}
"""Each keyword with the function that parses its value."""
