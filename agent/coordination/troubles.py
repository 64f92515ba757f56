"""What can be in the way of the hub, each in one line with its mend."""

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc


class Rank(enum.IntEnum):
    """Of troubles with several addresses the gravest is told: that a replica does not lead is the least news."""

    NOT_LEADING = 0
    NO_ANSWER = 1
    REFUSED = 2


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong and where, and what mends it."""

    what: str
    mend: str
    rank: Rank = Rank.NO_ANSWER


class TroubleError(Exception):
    """The hub cannot be reached, or does not want us."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(f"{trouble.what}; {trouble.mend}" if trouble.mend else trouble.what)
        self.trouble = trouble


RUNNING: Final = "see whether the controller runs: kubectl -n kubemend get pods"
_NOT_LEADING = "does not lead"  # controller.hub: a replica that stands by, or has lost the lead


def of_rpc(code: grpc.StatusCode, details: str, *, where: str, ca: Path, name: str) -> Trouble:
    """Return what the end of a stream means. ``where`` is the address."""
    text = " ".join(details.split())
    match code:
        case grpc.StatusCode.UNAUTHENTICATED:
            what = f"the hub at {where} does not accept the agent's token: {text}"
            return Trouble(what, "mount a token for the audience kubemend-hub, and set --hub-token", Rank.REFUSED)
        case grpc.StatusCode.PERMISSION_DENIED:
            what = f"the hub at {where} does not let the agent speak for this node: {text}"
            return Trouble(
                what, "the token must be bound to a pod on this node, and --node-name its node", Rank.REFUSED
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Trouble(f"the hub at {where} hears too much of the agent: {text}", "see the log of the controller")
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.UNIMPLEMENTED:
            what = f"the hub at {where} does not understand the agent: {text}"
            return Trouble(what, "run agent and controller of one version", Rank.REFUSED)
        case grpc.StatusCode.UNAVAILABLE:
            return _unavailable(text, where=where, ca=ca, name=name)
    return Trouble(f"the stream to the hub at {where} broke: {code.name}: {text}", "see the log of the controller")


def _unavailable(text: str, *, where: str, ca: Path, name: str) -> Trouble:
    """Tell apart what gRPC has one code for, by its words."""
    if _NOT_LEADING in text:
        return Trouble(f"no replica of the hub leads yet ({where} stands by)", RUNNING, Rank.NOT_LEADING)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        why = _certificate_fault(text)
        what = f"the hub at {where} has a certificate that {ca} does not vouch for: {why}"
        return Trouble(what, "mount the CA that the controller publishes (ConfigMap kubemend-hub-ca)", Rank.REFUSED)
    if "Hostname Verification Check failed" in text:
        return Trouble(f"what answers at {where} has no certificate for {name}", "set --hub-name", Rank.REFUSED)
    if "Failed to create security handshaker" in text:
        return Trouble(f"{ca} holds no certificate", "mount the ConfigMap kubemend-hub-ca there", Rank.REFUSED)
    if "handshake" in text.lower():
        return Trouble(f"what answers at {where} does not speak TLS as the hub does", "set --hub", Rank.REFUSED)
    why = text.rpartition("remote host: ")[2].rpartition(f"{where}: ")[2]
    return Trouble(f"no hub answers at {where}: {why}", RUNNING)


def _certificate_fault(text: str) -> str:
    """Pick OpenSSL's own words: ``…CERTIFICATE_VERIFY_FAILED: self signed certificate in certificate chain: OK``."""
    return text.rpartition("CERTIFICATE_VERIFY_FAILED: ")[2].removesuffix(": OK")
