"""Certificates are created, stored and read again."""

import base64
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.x509 import verification

from kubemend.controller.certificates import making, stored
from kubemend.controller.certificates.making import Pair
from kubemend.controller.certificates.plan import DAY, Act, Periods, Step
from kubemend.controller.certificates.stored import Stored

_NOW = 1_800_000_000.0
_PERIODS = Periods()
_STRANGE_KEY = b"""-----BEGIN PRIVATE KEY-----
MDwCAQAwDgYHKoZIzj0CAQYDKgMEBCcwJQIBAQQgAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=
-----END PRIVATE KEY-----
"""
"""On a curve that is not known (1.2.3.4)."""
_NAMES = frozenset({"kubemend-hub", "kubemend-hub.kubemend.svc", "10.0.0.1", "fd00::1"})


def _renewed(before: Stored, *, now: float = _NOW, names: frozenset[str] = _NAMES) -> tuple[Stored, list[Act]]:
    steps: list[Step] = []
    after = stored.renewed(before, names=names, now=now, periods=_PERIODS, did=steps.append)
    return after, [step.act for step in steps]


def _trusts(bundle: str, server: Pair | None, *, at: float, name: x509.DNSName | x509.IPAddress) -> bool:
    """Return whether a TLS client with this bundle accepts the server for this name (RFC 5280, by ``cryptography``)."""
    assert server is not None
    store = verification.Store(x509.load_pem_x509_certificates(bundle.encode()))
    verifier = verification.PolicyBuilder().store(store).time(making.time_of(at)).build_server_verifier(name)
    try:
        verifier.verify(server.certificate, [])
    except verification.VerificationError:
        return False
    return True


def test_first_renewal_creates_everything_then_nothing_is_due() -> None:
    first, acts = _renewed(Stored())
    assert acts == [Act.MAKE_CA, Act.ISSUE_SERVER]
    assert _renewed(first) == (first, [])


@pytest.mark.parametrize("name", sorted(_NAMES))
@pytest.mark.parametrize(("after", "trusted"), [(-1800.0, True), (0.0, True), (89 * DAY, True), (91 * DAY, False)])
def test_bundle_trusts_server_for_its_names_while_valid(name: str, after: float, *, trusted: bool) -> None:
    first, _ = _renewed(Stored())
    subject = making.alternative(name)
    assert isinstance(subject, (x509.DNSName, x509.IPAddress))
    assert _trusts(first.bundle(), first.server, at=_NOW + after, name=subject) is trusted
    assert not _trusts(first.bundle(), first.server, at=_NOW + after, name=x509.DNSName("other"))


def test_stored_certificates_round_trip_through_secret() -> None:
    first, _ = _renewed(Stored())
    second, acts = _renewed(first, now=_NOW + 740 * DAY)
    assert acts == [Act.MAKE_NEXT_CA, Act.ISSUE_SERVER]
    again = Stored.from_secret(second.to_secret())
    assert again.to_secret() == second.to_secret()
    assert again.view(periods=_PERIODS) == second.view(periods=_PERIODS)


def test_both_bundles_trust_both_servers_during_ca_change() -> None:
    name = x509.DNSName("kubemend-hub")
    first, _ = _renewed(Stored())
    published, _ = _renewed(first, now=_NOW + 740 * DAY)
    changed, acts = _renewed(published, now=_NOW + 742 * DAY)
    assert acts == [Act.PROMOTE_NEXT_CA, Act.ISSUE_SERVER]
    for bundle in (published.bundle(), changed.bundle()):
        for server in (published.server, changed.server):
            assert _trusts(bundle, server, at=_NOW + 742 * DAY, name=name)
    assert not _trusts(first.bundle(), changed.server, at=_NOW + 742 * DAY, name=name)
    dropped, acts = _renewed(changed, now=_NOW + _PERIODS.ca)
    assert Act.DROP_OLD_CA in acts
    assert len(x509.load_pem_x509_certificates(dropped.bundle().encode())) == 1


@pytest.mark.parametrize(
    ("ahead", "acts"), [(70 * DAY, [Act.ISSUE_SERVER]), (5 * 365 * DAY, [Act.MAKE_CA, Act.ISSUE_SERVER]), (1800.0, [])]
)
def test_certificates_of_a_clock_that_was_ahead_are_replaced(ahead: float, acts: list[Act]) -> None:
    """Agents would have no hub until these become valid."""
    first, _ = _renewed(Stored())
    wrong, _ = _renewed(first, now=_NOW + ahead)
    right, done = _renewed(wrong)
    assert done == acts
    assert _trusts(right.bundle(), right.server, at=_NOW, name=x509.DNSName("kubemend-hub"))


def test_new_name_issues_server_certificate_from_same_ca() -> None:
    first, _ = _renewed(Stored())
    second, acts = _renewed(first, names=_NAMES | {"hub.example.com"})
    assert acts == [Act.ISSUE_SERVER]
    assert second.bundle() == first.bundle()


@pytest.mark.parametrize(
    ("spoil", "acts"),
    [
        (lambda data: data.pop("tls.key"), [Act.ISSUE_SERVER]),
        (lambda data: data.update({"tls.crt": "not base64"}), [Act.ISSUE_SERVER]),
        (lambda data: data.update({"tls.crt": base64.b64encode(b"not PEM").decode()}), [Act.ISSUE_SERVER]),
        (lambda data: data.update({"tls.key": data["ca.key"]}), [Act.ISSUE_SERVER]),
        (lambda data: data.pop("ca.key"), [Act.MAKE_CA, Act.ISSUE_SERVER]),
        (lambda data: data.update({"old-ca.crt": "x"}), []),
        (lambda data: data.update({"tls.key": base64.b64encode(_STRANGE_KEY).decode()}), [Act.ISSUE_SERVER]),
    ],
)
def test_unreadable_certificates_are_created_again(spoil: Callable[[dict[str, str]], object], acts: list[Act]) -> None:
    data = _renewed(Stored())[0].to_secret()
    spoil(data)
    assert _renewed(Stored.from_secret(data))[1] == acts


def test_ca_signs_only_servers() -> None:
    first, _ = _renewed(Stored())
    assert first.ca is not None
    assert first.server is not None
    constraints = first.ca.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)
    usage = first.server.certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]
