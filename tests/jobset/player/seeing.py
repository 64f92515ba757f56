"""Compare a JobSet's objects with the expectations. Pure."""

import collections
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from kubemend.controller.jobset.children import naming
from tests.jobset.player.model import Expect, ExpectedJob

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """Hold all checked objects. ``jobset`` None: deleted. ``jobs``, ``services`` and ``claims`` are the namespace's.

    ``uid`` and ``name`` are the JobSet's, also after its deletion. ``gang`` is its statement about its gang's rounds.
    """

    uid: str
    name: str
    jobset: Json | None
    jobs: Mapping[str, Json]
    services: Mapping[str, Json]
    claims: Mapping[str, Json]
    events: tuple[str, ...]
    restart_requests: tuple[Json, ...]
    gang: Json


def differences(expect: Expect, seen: Seen, *, prefix: str) -> list[str]:
    """Return the differences, a line each. ``prefix`` begins the names of Jobs in the API."""
    return [*_lines(_filled(expect, {"$UID": seen.uid, "$NAME": seen.name}), seen, prefix)]


def unlike(pattern: Any, found: Any, path: str) -> Iterator[str]:
    """Yield where ``found`` lacks the pattern's content: a part of an object, lists whole, null for absent values.

    False also counts as absent where the API server leaves it out.
    """
    if isinstance(pattern, Mapping) and isinstance(found, Mapping):
        for key, each in pattern.items():
            yield from unlike(each, found.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(pattern, list) and isinstance(found, list | tuple) and len(pattern) == len(found):
        for index, each in enumerate(pattern):
            yield from unlike(each, found[index], f"{path}[{index}]")
    elif pattern != found and not (pattern is False and found is None):
        yield f"{path} is {found!r}, not {pattern!r}"


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    """Return a value with placeholders replaced that only the API server knows."""
    if isinstance(value, str):
        for name, meaning in values.items():
            value = value.replace(name, meaning)
        return value
    if isinstance(value, Mapping):
        return {_filled(key, values): _filled(each, values) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_filled(each, values) for each in value)
    if isinstance(value, Expect | ExpectedJob):
        return replace(value, **{each.name: _filled(getattr(value, each.name), values) for each in fields(value)})
    return value


def _lines(expect: Expect, seen: Seen, prefix: str) -> Iterator[str]:
    yield from _state(expect.jobset, seen.jobset)
    yield from unlike(expect.like, seen.jobset or {}, "")
    status = (seen.jobset or {}).get("status") or {}
    if expect.conditions is not None:
        yield from _conditions(expect.conditions, status)
    for name, wanted, found in (
        ("terminalState", expect.terminal_state, status.get("terminalState", "")),
        ("restarts", expect.restarts, status.get("restarts", 0)),
        ("restartsCountTowardsMax", expect.restarts_counted, status.get("restartsCountTowardsMax", 0)),
        ("inPlace (previous, current)", expect.in_place, _in_place(status)),
    ):
        if wanted is not None and wanted != found:
            yield f"{name} is {found!r}, not {wanted!r}"
    if expect.replicated_jobs is not None:
        yield from _replicated_jobs(expect.replicated_jobs, status)
    if expect.jobs is not None:
        yield from _jobs({f"{prefix}{name}": each for name, each in expect.jobs.items()}, seen)
    for what, objects, found_objects in (
        ("services", expect.services, seen.services),
        ("claims", expect.claims, seen.claims),
    ):
        if objects is not None:
            yield from _named(what, objects, found_objects)
    if expect.events is not None:
        yield from _events(expect.events, seen.events)
    if expect.restart_requests is not None:
        yield from unlike([*expect.restart_requests], seen.restart_requests, "restartRequests")
    if expect.gang is not None:
        yield from unlike(expect.gang, seen.gang, "gang")


def _state(wanted: str, jobset: Json | None) -> Iterator[str]:
    found = "gone" if jobset is None else "deleting" if "deletionTimestamp" in jobset["metadata"] else "there"
    if found != wanted:
        yield f"the JobSet is {found}, not {wanted}"


def _conditions(wanted: Mapping[str, str], status: Json) -> Iterator[str]:
    found = {each["type"]: each for each in status.get("conditions") or ()}
    for kind in sorted(found.keys() - wanted.keys()):
        yield f"condition {kind} exists: {_text(found[kind])}"
    for kind, expected in wanted.items():
        if kind not in found:
            yield f"condition {kind} is missing"
        elif not _matches(expected, _text(found[kind])):
            yield f"condition {kind} is {_text(found[kind])!r}, not {expected!r}"


def _text(condition: Json) -> str:
    return f"{condition['status']} {condition['reason']}: {condition['message']}"


def _matches(wanted: str, found: str) -> bool:
    """Return whether a text matches.

    Without a message it may be any, and one that begins with ``~`` is a pattern.
    """
    head, colon, message = wanted.partition(": ")
    if not colon:
        return found.partition(": ")[0] == head
    if not message.startswith("~"):
        return found == wanted
    found_head, _, found_message = found.partition(": ")
    return found_head == head and re.search(message[1:].strip(), found_message) is not None


def _in_place(status: Json) -> tuple[int | None, int | None]:
    return status.get("previousInPlaceRestartAttempt"), status.get("currentInPlaceRestartAttempt")


def _replicated_jobs(wanted: Mapping[str, Json], status: Json) -> Iterator[str]:
    found = {each["name"]: each for each in status.get("replicatedJobsStatus") or ()}
    for name in sorted(found.keys() | wanted.keys()):
        has = {key: value for key, value in found.get(name, {}).items() if key != "name" and value not in (0, [])}
        should = {key: value for key, value in wanted.get(name, {}).items() if value not in (0, [])}
        if has != should:
            yield f"replicatedJobsStatus of {name} is {has}, not {should}"


def _jobs(wanted: Mapping[str, ExpectedJob], seen: Seen) -> Iterator[str]:
    yield from _named("jobs", {name: {} for name in wanted}, seen.jobs)
    for name in wanted.keys() & seen.jobs.keys():
        yield from _job(wanted[name], seen.jobs[name], f"Job {name}")


def _job(wanted: ExpectedJob, job: Json, what: str) -> Iterator[str]:
    metadata = job["metadata"]
    labels = metadata.get("labels") or {}
    for name, value, found in (
        ("attempt", wanted.attempt, labels.get(naming.RESTART_ATTEMPT)),
        ("jobAttempt", wanted.job_attempt, labels.get(naming.JOB_RESTART_ATTEMPT)),
    ):
        if value is not None and found != str(value):
            yield f"{what}: {name} is {found}, not {value}"
    for name, is_so, found in (
        ("deleting", wanted.deleting, "deletionTimestamp" in metadata),
        ("suspended", wanted.suspended, bool(job["spec"].get("suspend"))),
    ):
        if is_so is not None and found != is_so:
            yield f"{what}: {name} is {found}, not {is_so}"
    yield from (f"{what}: {line}" for line in unlike(wanted.like, job, ""))


def _named(what: str, wanted: Mapping[str, Json], found: Mapping[str, Json]) -> Iterator[str]:
    if wanted.keys() != found.keys():
        yield f"{what} are {sorted(found)}, not {sorted(wanted)}"
    for name in wanted.keys() & found.keys():
        yield from unlike(wanted[name], found[name], f"{what}.{name}")


def _events(wanted: tuple[str, ...], found: tuple[str, ...]) -> Iterator[str]:
    """Compare them in any order: those of one reconcile have the same time."""
    left = collections.Counter(found)
    for expected in wanted:
        match = next((each for each in left if _matches(expected, each)), None)
        if match is None:
            yield f"event is missing: {expected}"
        else:
            left -= collections.Counter([match])
    for each in left.elements():
        yield f"unexpected event: {each}"
