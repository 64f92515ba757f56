"""The words of steps, and what each of them needs. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from hack.jobset_scenarios import checked
from hack.jobset_scenarios.model import (
    Action,
    Create,
    Delete,
    FailRequests,
    FinishDeletions,
    JobState,
    Look,
    Pass,
    Put,
    Relabel,
    RestartController,
    RoundBegins,
    RoundEnds,
    RoundRefused,
    Set,
    SetJobs,
    Together,
    WriteStatus,
)

_COUNTS: Final = ("active", "ready", "succeeded", "failed", "failedIndexes", "completedIndexes", "terminating")
_SERVERS_SAY_NO: Final = range(400, 600)
_RESOURCES: Final = ("jobsets", "jobs", "services", "persistentvolumeclaims", "restarts")


def parse(word: str, value: Any, where: str) -> Action:
    """Return what happens. Raises ScenarioError."""
    return WORDS[checked.one_of(word, where, WORDS)](value, where)


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
    given = checked.mapping(value, where, known=("jobs", "reason", "message", "at"), required=("jobs",))
    return SetJobs(
        checked.texts(given["jobs"], f"{where}.jobs"),
        JobState.FAIL,
        reason=checked.text(given["reason"], f"{where}.reason") if "reason" in given else "",
        message=checked.text(given["message"], f"{where}.message") if "message" in given else "",
        at=checked.number(given["at"], f"{where}.at") if "at" in given else None,
    )


def _counts(value: Any, where: str) -> Action:
    given = checked.mapping(value, where, known=("jobs", "conditions", *_COUNTS), required=("jobs",))
    return SetJobs(
        checked.texts(given["jobs"], f"{where}.jobs"),
        JobState.COUNTS,
        counts={key: given[key] for key in _COUNTS if key in given},
        conditions=checked.texts(given.get("conditions", []), f"{where}.conditions"),
    )


def _set(value: Any, where: str) -> Action:
    fields = dict(checked.mapping(value, where))
    refused = fields.pop("refused", "")
    for path in fields:
        if path.partition(".")[0] not in ("spec", "metadata"):
            raise checked.ScenarioError(where, what=f"{path!r} is no field", mend="write such as spec.suspend: true")
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
        raise checked.ScenarioError(where, what="names not one resource", mend="write such as {services: [js]}")
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


def _pass(value: Any, where: str) -> Action:
    return Pass(checked.number(value, where))


def _fail_requests(value: Any, where: str) -> Action:
    known = ("count", "status", "method", "path")
    given = checked.mapping(value, where, known=known, required=known)
    status = checked.whole(given["status"], f"{where}.status")
    if status not in _SERVERS_SAY_NO:
        raise checked.ScenarioError(where, what=f"{status} is no error", mend="write a status from 400 to 599")
    return FailRequests(
        checked.whole(given["count"], f"{where}.count"),
        status=status,
        method=checked.text(given["method"], f"{where}.method"),
        path=checked.text(given["path"], f"{where}.path"),
    )


def _together(value: Any, where: str) -> Action:
    actions: list[Action] = []
    for index, each in enumerate(checked.items(value, where)):
        at = f"{where}[{index}]"
        given = checked.mapping(each, at, known=WORDS)
        if len(given) != 1:
            raise checked.ScenarioError(at, what="is not one action", mend="write such as {complete: workers-0}")
        ((word, needed),) = given.items()
        actions.append(parse(word, needed, f"{at}.{word}"))
    return Together(tuple(actions))


def _look(value: Any, where: str) -> Action:
    _nothing(value, where)
    return Look()


def _nothing(value: Any, where: str) -> None:
    if value is not None:
        raise checked.ScenarioError(where, what="needs no value", mend="leave it out")


WORDS: Final[Mapping[str, Callable[[Any, str], Action]]] = {
    "create": _create,
    "active": _state(JobState.ACTIVE),
    "ready": _state(JobState.READY),
    "complete": _state(JobState.COMPLETE),
    "stopped": _state(JobState.STOPPED),
    "fail": _fail,
    "counts": _counts,
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
    "pass": _pass,
    "fail-requests": _fail_requests,
    "together": _together,
    "look": _look,
}
"""Each word with what reads its value."""
