"""Parse the expectations of a step from YAML. Pure."""

from typing import Any, Final

from tests.jobset.player import checked
from tests.jobset.player.checked import Json
from tests.jobset.player.model import Expect, ExpectedJob

_KEYS: Final = (
    "jobset", "like", "conditions", "terminalState", "restarts", "restartsCountTowardsMax", "inPlace", "replicatedJobs",
    "jobs", "services", "claims", "events", "restartRequests", "gang",
)  # fmt: skip
_COUNTS: Final = ("ready", "succeeded", "failed", "active", "suspended", "jobRestarts", "jobRestartsCountTowardsMax")
_OF_A_JOB: Final = ("attempt", "jobAttempt", "suspended", "deleting", "like")


def parse(value: Any, where: str) -> Expect:
    """Return the expectations. Raises ScenarioError."""
    given = checked.mapping(value, where, known=_KEYS)
    if not given:
        raise checked.ScenarioError(where, what="expects nothing", hint="leave it out, or give an expectation")
    of = _Parts(given, where)
    return Expect(
        jobset=checked.one_of(given.get("jobset", "there"), f"{where}.jobset", ("there", "deleting", "gone")),
        like=checked.mapping(given.get("like", {}), f"{where}.like"),
        conditions=of.conditions(),
        terminal_state=given.get("terminalState"),
        restarts=of.whole("restarts"),
        restarts_counted=of.whole("restartsCountTowardsMax"),
        in_place=of.in_place(),
        replicated_jobs=of.replicated_jobs(),
        jobs=of.jobs(),
        services=of.named("services"),
        claims=of.named("claims"),
        events=of.events(),
        restart_requests=of.restart_requests(),
        gang=of.gang(),
    )


class _Parts:
    """Read the parts; None for a missing one."""

    def __init__(self, given: Json, where: str) -> None:
        self._given = given
        self._where = where

    def whole(self, key: str) -> int | None:
        return checked.whole(self._given[key], f"{self._where}.{key}") if key in self._given else None

    def conditions(self) -> dict[str, str] | None:
        if "conditions" not in self._given:
            return None
        given = checked.mapping(self._given["conditions"], f"{self._where}.conditions")
        return {key: checked.text(each, f"{self._where}.conditions.{key}") for key, each in given.items()}

    def in_place(self) -> tuple[int | None, int | None] | None:
        if "inPlace" not in self._given:
            return None
        at = f"{self._where}.inPlace"
        given = checked.mapping(self._given["inPlace"], at, known=("previous", "current"))
        return given.get("previous"), given.get("current")

    def replicated_jobs(self) -> dict[str, Json] | None:
        if "replicatedJobs" not in self._given:
            return None
        at = f"{self._where}.replicatedJobs"
        given = checked.mapping(self._given["replicatedJobs"], at)
        return {key: checked.mapping(each, f"{at}.{key}", known=_COUNTS) for key, each in given.items()}

    def jobs(self) -> dict[str, ExpectedJob] | None:
        if "jobs" not in self._given:
            return None
        value, at = self._given["jobs"], f"{self._where}.jobs"
        if isinstance(value, list):
            return {name: ExpectedJob() for name in checked.texts(value, at)}
        return {key: _job(each, f"{at}.{key}") for key, each in checked.mapping(value, at).items()}

    def named(self, key: str) -> dict[str, Json] | None:
        if key not in self._given:
            return None
        value, at = self._given[key], f"{self._where}.{key}"
        if isinstance(value, list):
            return {name: {} for name in checked.texts(value, at)}
        return {name: checked.mapping(each, f"{at}.{name}") for name, each in checked.mapping(value, at).items()}

    def events(self) -> tuple[str, ...] | None:
        if "events" not in self._given:
            return None
        return checked.texts(self._given["events"], f"{self._where}.events")

    def restart_requests(self) -> tuple[Json, ...] | None:
        if "restartRequests" not in self._given:
            return None
        at = f"{self._where}.restartRequests"
        return tuple(checked.mapping(each, at) for each in checked.items(self._given["restartRequests"], at))

    def gang(self) -> Json | None:
        if "gang" not in self._given:
            return None
        return checked.mapping(self._given["gang"], f"{self._where}.gang", known=("limit", "used", "closed"))


def _job(value: Any, where: str) -> ExpectedJob:
    given = checked.mapping({} if value is None else value, where, known=_OF_A_JOB)
    return ExpectedJob(
        attempt=checked.whole(given["attempt"], f"{where}.attempt") if "attempt" in given else None,
        job_attempt=checked.whole(given["jobAttempt"], f"{where}.jobAttempt") if "jobAttempt" in given else None,
        suspended=checked.flag(given["suspended"], f"{where}.suspended") if "suspended" in given else None,
        deleting=checked.flag(given.get("deleting", False), f"{where}.deleting"),
        like=checked.mapping(given.get("like", {}), f"{where}.like"),
    )
