"""Describe the problems that prevent a connection to the hub, each in one line with its hint."""

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc


class Severity(enum.IntEnum):
    """Severity problems: with several addresses the worst is reported. That a replica does not lead ranks lowest."""

    NOT_LEADING = 0
    NO_ANSWER = 1
    REFUSED = 2


@dataclass(frozen=True, slots=True)
class HubProblem:
    """A problem, its place, and the hint that fixes it."""

    what: str
    hint: str
    severity: Severity = Severity.NO_ANSWER


class HubError(Exception):
    """The hub cannot be reached, or rejects the agent."""

    def __init__(self, problem: HubProblem) -> None:
        super().__init__(f"{problem.what}. {problem.hint}" if problem.hint else problem.what)
        self.problem = problem


RUNNING: Final = "Check that the controller runs: kubectl -n kubemend get pods"
_NOT_LEADING = "does not lead"  # controller.hub: a replica that is a standby, or no longer leads


def of_rpc(code: grpc.StatusCode, details: str, *, where: str, ca: Path, name: str) -> HubProblem:
    """Return the problem that ended a stream. ``where`` is the address."""
    text = " ".join(details.split())
    match code:
        case grpc.StatusCode.UNAUTHENTICATED:
            what = f"the hub at {where} does not accept the agent's token: {text}"
            return HubProblem(
                what, "Mount a token for the audience kubemend-hub, and set --hub-token.", Severity.REFUSED
            )
        case grpc.StatusCode.PERMISSION_DENIED:
            what = f"the hub at {where} does not accept the agent for this node: {text}"
            return HubProblem(
                what, "Bind the token to a pod on this node, and set --node-name to its node.", Severity.REFUSED
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return HubProblem(
                f"the hub at {where} limits the agent's messages: {text}", "See the log of the controller."
            )
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.UNIMPLEMENTED:
            what = f"the hub at {where} does not understand the agent: {text}"
            return HubProblem(what, "Run agent and controller of the same version.", Severity.REFUSED)
        case grpc.StatusCode.UNAVAILABLE:
            return _unavailable(text, where=where, ca=ca, name=name)
    return HubProblem(f"the stream to the hub at {where} broke: {code.name}: {text}", "See the log of the controller.")


def _unavailable(text: str, *, where: str, ca: Path, name: str) -> HubProblem:
    """Distinguish the problems for which gRPC has one code, by their text."""
    if _NOT_LEADING in text:
        return HubProblem(f"no replica of the hub leads yet ({where} is a standby)", RUNNING, Severity.NOT_LEADING)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        reason = _certificate_fault(text)
        what = f"{ca} does not verify the certificate of the hub at {where}: {reason}"
        return HubProblem(
            what, "Mount the CA that the controller publishes (ConfigMap kubemend-hub-ca).", Severity.REFUSED
        )
    if "Hostname Verification Check failed" in text:
        return HubProblem(f"the server at {where} has no certificate for {name}", "Set --hub-name.", Severity.REFUSED)
    if "Failed to create security handshaker" in text:
        return HubProblem(f"{ca} holds no certificate", "Mount the ConfigMap kubemend-hub-ca there.", Severity.REFUSED)
    if "handshake" in text.lower():
        return HubProblem(f"the server at {where} does not speak TLS as the hub does", "Set --hub.", Severity.REFUSED)
    reason = text.rpartition("remote host: ")[2].rpartition(f"{where}: ")[2]
    return HubProblem(f"no hub answers at {where}: {reason}", RUNNING)


def _certificate_fault(text: str) -> str:
    """Extract OpenSSL's text: ``…CERTIFICATE_VERIFY_FAILED: self signed certificate in certificate chain: OK``."""
    return text.rpartition("CERTIFICATE_VERIFY_FAILED: ")[2].removesuffix(": OK")
