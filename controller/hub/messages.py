"""Validate an agent's messages. No other part of the controller receives bytes or values that were not checked here.

An agent is trusted about the pods of its own node (``hub.pod_authorization``). But its process may be broken,
compromised, or newer than this one. Pure.
"""

import functools
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from kubemend.common import gangs
from kubemend.common.coordination import PROTOCOL
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.hub.refusals import Reason, RefusedError

OLDEST: Final = 1
"""The oldest agent protocol that this hub supports. A newer agent decides itself whether it supports this hub."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one message. A node runs a few hundred pods at most; each list has room for many times that.

    ``text`` is for readable text, in characters; identifiers have limits of their own, by Kubernetes' rules.
    """

    message_bytes: int = 1024 * 1024
    results: int = 4096
    samples: int = 4096
    seconds: int = 64
    text: int = 8192


_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123, for namespaces and containers
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")  # names of pods, nodes and most objects
_UID: Final = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,63}")
_WORD: Final = re.compile(r"[\x21-\x7e]{0,128}")  # codes, reasons, versions and identifiers: no blanks
_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")

_LONGEST_SECONDS: Final = 100 * 365 * 86400.0
"""A hundred years: a clock that is not set shows 1970. Far longer durations give no date."""

_ROUNDS_KEPT: Final = 64

_KINDS: Final = frozenset(pb.Fault.Kind.values())
_PHASES: Final = frozenset(pb.StepResult.Phase.values()) - {pb.StepResult.NONE}


def parse(data: bytes, *, limits: Limits) -> pb.AgentMessage:
    """Return the message in these bytes. For any bytes, it raises nothing but RefusedError."""
    if len(data) > limits.message_bytes:
        raise RefusedError(Reason.OVERSIZED, f"the message has {len(data)} bytes; the limit is {limits.message_bytes}")
    try:
        message = pb.AgentMessage.FromString(data)
    except DecodeError as error:
        raise RefusedError(Reason.MALFORMED, "the message is not an AgentMessage of coordination/v1") from error
    body = message.WhichOneof("body")
    if body is None:
        raise RefusedError(Reason.UNKNOWN_MESSAGE, "the message has no body that this hub knows")
    _CHECKS[body](getattr(message, body), limits)
    return message


def hello_of(message: pb.AgentMessage, *, node: str) -> pb.Hello:
    """Return the Hello that a stream must begin with. Raises RefusedError if it is missing or another node's."""
    if message.WhichOneof("body") != "hello":
        raise RefusedError(Reason.MALFORMED, "the first message of a stream must be a Hello")
    if message.hello.node != node:
        raise RefusedError(
            Reason.WRONG_NODE, f"the Hello is from node {message.hello.node}, but the token belongs to node {node}"
        )
    return message.hello


def _hello(hello: pb.Hello, limits: Limits) -> None:
    if hello.protocol < OLDEST:
        raise RefusedError(
            Reason.OTHER_VERSION,
            f"the agent uses protocol {hello.protocol}, this hub {OLDEST} to {PROTOCOL}. Upgrade the agent",
        )
    _shape(_SUBDOMAIN, hello.node, "node")
    _count(hello.results, limits.results, "results")
    for result in hello.results:
        _result(result, limits)


def _fault(fault: pb.Fault, limits: Limits) -> None:
    _shape(_ID, fault.id, "id of a fault")
    _pod(fault.pod)
    _gang(fault.gang, fault.pod)
    if fault.container:
        _shape(_LABEL, fault.container, "container")
    _known(fault.kind, _KINDS, "kind of fault")
    _shape(_WORD, fault.code, "code")
    _shape(_WORD, fault.action_class, "action_class")
    _shape(_WORD, fault.device, "device")
    _text(fault.message, limits, "message")
    _seconds(fault.age_seconds, "age_seconds")


def _result(result: pb.StepResult, limits: Limits) -> None:
    _round(result.round)
    _pod(result.pod)
    _known(result.phase, _PHASES, "phase")
    _shape(_WORD, result.reason, "reason")
    _text(result.detail, limits, "detail")
    if result.seconds:
        _count(result.seconds, limits.seconds, "seconds")
        for phase, length in result.seconds.items():
            _shape(_ID, phase, "name of a phase")
            _seconds(length, "seconds")
    _seconds(result.unheld_seconds, "unheld_seconds")


def _samples(samples: pb.Samples, limits: Limits) -> None:
    _count(samples.devices, limits.samples, "devices")
    for pod in {sample.pod_uid for sample in samples.devices}:  # few, and thousands of agents send these all the time
        _shape(_UID, pod, "uid of a pod")
    for sample in samples.devices:
        _shape(_ID, sample.device, "device")
        if not all(map(math.isfinite, (sample.utilization, sample.clock, sample.power))):
            raise RefusedError(Reason.MALFORMED, "a sample is not a number")


_CHECKS: Final[Mapping[str, Callable[[Any, Limits], None]]] = {
    "hello": _hello,
    "fault": _fault,
    "result": _result,
    "samples": _samples,
}


def _pod(pod: pb.Pod) -> None:
    _shape(_UID, pod.uid, "uid of a pod")
    _shape(_LABEL, pod.namespace, "namespace")
    _shape(_SUBDOMAIN, pod.name, "name of a pod")


def _gang(text: str, pod: pb.Pod) -> None:
    try:
        gang = gangs.GangKey.parse(text)
    except ValueError as error:
        raise RefusedError(Reason.MALFORMED, "the gang is not NAMESPACE/KIND/NAME") from error
    _shape(_WORD, gang.kind, "kind of a gang")
    _shape(_WORD, gang.name, "name of a gang")
    if gang.namespace != pod.namespace:
        raise RefusedError(Reason.MALFORMED, "the gang and its member are in different namespaces")


@functools.lru_cache(maxsize=_ROUNDS_KEPT)
def _round(text: str) -> None:
    """Check a round's id. Thousands of results in a row have the same; an invalid one is not kept."""
    namespace, _, name = text.partition("/")
    _shape(_LABEL, namespace, "namespace of a round")
    _shape(_SUBDOMAIN, name, "name of a round")


def _shape(pattern: re.Pattern[str], value: str, what: str) -> None:
    if pattern.fullmatch(value) is None:
        raise RefusedError(Reason.MALFORMED, f"{what}: {value[:64]!r} is not valid")


def _known(value: int, values: Collection[int], what: str) -> None:
    if value not in values:
        raise RefusedError(Reason.UNKNOWN_MESSAGE, f"{what}: {value} is not known to this hub")


def _text(value: str, limits: Limits, what: str) -> None:
    if len(value) > limits.text:
        raise RefusedError(Reason.OVERSIZED, f"{what} has {len(value)} characters; the limit is {limits.text}")


def _count(items: Collection[object], most: int, what: str) -> None:
    if len(items) > most:
        raise RefusedError(Reason.TOO_MANY, f"{len(items)} {what} in one message; the limit is {most}")


def _seconds(value: float, what: str) -> None:
    if not 0 <= value <= _LONGEST_SECONDS:
        raise RefusedError(Reason.MALFORMED, f"{what}: {value} is not a valid duration")
