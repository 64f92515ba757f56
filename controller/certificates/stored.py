"""The stored certificates: how the Secret holds them, and the result of each step of the plan. No I/O."""

import base64
import binascii
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from cryptography import x509

from kubemend.controller.certificates import making, plan
from kubemend.controller.certificates.making import Pair
from kubemend.controller.certificates.plan import Act, Periods, View

CA: Final = "ca.crt"
"""Key of the Secret, and of the ConfigMap. In the ConfigMap it holds the whole bundle."""

_CA: Final = (CA, "ca.key")
_NEXT_CA: Final = ("next-ca.crt", "next-ca.key")
_SERVER: Final = ("tls.crt", "tls.key")
_OLD_CA: Final = "old-ca.crt"


@dataclass(frozen=True, slots=True)
class Stored:
    """The certificates with their keys. None is missing or cannot be read."""

    ca: Pair | None = None
    next_ca: Pair | None = None
    old_ca: x509.Certificate | None = None
    server: Pair | None = None

    @classmethod
    def from_secret(cls, data: Mapping[str, str]) -> Self:
        """Read a Secret's ``data``."""
        texts = {key: _decode(value) for key, value in data.items()}

        def pair(keys: tuple[str, str]) -> Pair | None:
            return Pair.read(*(texts.get(key, b"") for key in keys))

        return cls(pair(_CA), pair(_NEXT_CA), making.read_certificate(texts.get(_OLD_CA, b"")), pair(_SERVER))

    def to_secret(self) -> dict[str, str]:
        """Return the Secret's ``data``."""
        texts: dict[str, bytes] = {}
        for keys, pair in ((_CA, self.ca), (_NEXT_CA, self.next_ca), (_SERVER, self.server)):
            if pair is not None:
                texts |= dict(zip(keys, (pair.certificate_pem, pair.key_pem), strict=True))
        if self.old_ca is not None:
            texts[_OLD_CA] = making.certificate_pem(self.old_ca)
        return {key: base64.b64encode(text).decode() for key, text in texts.items()}

    def bundle(self) -> str:
        """Return the CAs that agents trust: current, next and old."""
        pairs = [pair.certificate for pair in (self.ca, self.next_ca) if pair is not None]
        old = [self.old_ca] if self.old_ca is not None else []
        return b"".join(making.certificate_pem(each) for each in [*pairs, *old]).decode()

    def view(self, *, periods: Periods) -> View:
        """Return the facts for the plan."""

        def of(ca: Pair | x509.Certificate | None) -> plan.CaView | None:
            certificate = ca.certificate if isinstance(ca, Pair) else ca
            return making.view_ca(certificate, periods=periods) if certificate is not None else None

        return View(
            ca=of(self.ca),
            next_ca=of(self.next_ca),
            old_ca=of(self.old_ca),
            server=making.view_server(self.server, ca=self.ca) if self.server is not None else None,
        )


def renewed(
    stored: Stored, *, names: frozenset[str], now: float, periods: Periods, did: Callable[[plan.Step], None]
) -> Stored:
    """Return it with all due steps taken, each reported to ``did``; the same object if no step is due."""
    while (step := plan.due(stored.view(periods=periods), names=names, now=now, periods=periods)) is not None:
        stored = _after(step.act, stored, names=names, now=now, periods=periods)
        did(step)
    return stored


def _after(act: Act, stored: Stored, *, names: frozenset[str], now: float, periods: Periods) -> Stored:
    match act:
        case Act.MAKE_CA:
            return Stored(ca=making.make_ca(now=now, periods=periods))
        case Act.MAKE_NEXT_CA:
            return dataclasses.replace(stored, next_ca=making.make_ca(now=now, periods=periods))
        case Act.PROMOTE_NEXT_CA:
            old = stored.ca.certificate if stored.ca is not None else None
            return dataclasses.replace(stored, ca=stored.next_ca, next_ca=None, old_ca=old)
        case Act.DROP_OLD_CA:
            return dataclasses.replace(stored, old_ca=None)
        case Act.ISSUE_SERVER if stored.ca is not None:
            server = making.issue_server(stored.ca, names=names, now=now, periods=periods)
            return dataclasses.replace(stored, server=server)
        case _:
            raise AssertionError(f"{act} without a CA")


def _decode(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return b""
