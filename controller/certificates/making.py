"""Make keys and certificates in PEM: ECDSA on P-256, which every TLS supports and whose handshakes are cheap."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kubemend.controller.certificates.plan import CaView, Periods, ServerView


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def read(cls, certificate: bytes, key: bytes) -> Self | None:
        """Return the pair in these PEM texts; None if they are invalid or do not belong together."""
        try:
            read_certificate = x509.load_pem_x509_certificate(certificate)
            read_key = serialization.load_pem_private_key(key, password=None)
            fits = read_certificate.public_key() == read_key.public_key()
        except (ValueError, TypeError, UnsupportedAlgorithm):
            return None
        return cls(read_certificate, read_key) if fits and isinstance(read_key, ec.EllipticCurvePrivateKey) else None

    @property
    def certificate_pem(self) -> bytes:
        """Return the certificate in PEM."""
        return certificate_pem(self.certificate)

    @property
    def key_pem(self) -> bytes:
        """Return the private key in PEM (PKCS #8), not encrypted: it is stored in a Secret."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def make_ca(*, now: float, periods: Periods) -> Pair:
    """Return a new self-signed CA that signs servers only. Its name is unique, because two CAs are trusted at times."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = _name(f"kubemend-hub-ca-{serial:x}"[:64])
    builder = (
        _builder(key, serial=serial, now=now, periods=periods, valid=periods.ca)
        .subject_name(name)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return Pair(builder.sign(key, hashes.SHA256()), key)


def issue_server(ca: Pair, *, names: frozenset[str], now: float, periods: Periods) -> Pair:
    """Return a new server certificate for these DNS names and IP addresses, signed by a CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = [alternative(name) for name in sorted(names)]
    builder = (
        _builder(key, serial=x509.random_serial_number(), now=now, periods=periods, valid=periods.server)
        .subject_name(_name("kubemend-hub"))
        .issuer_name(ca.certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(_issuer_key(ca), critical=False)
    )
    return Pair(builder.sign(ca.key, hashes.SHA256()), key)


def view_ca(certificate: x509.Certificate, *, periods: Periods) -> CaView:
    """Return the plan's facts about a CA."""
    return CaView(
        made_at=certificate.not_valid_before_utc.timestamp() + periods.backdated,
        not_after=certificate.not_valid_after_utc.timestamp(),
    )


def view_server(server: Pair, *, ca: Pair | None) -> ServerView:
    """Return the plan's facts about a server's certificate."""
    return ServerView(
        not_after=server.certificate.not_valid_after_utc.timestamp(),
        names=_names(server.certificate),
        by_ca=ca is not None and _has_signed(ca.certificate, server.certificate),
        not_before=server.certificate.not_valid_before_utc.timestamp(),
    )


def read_certificate(pem: bytes) -> x509.Certificate | None:
    """Return a certificate without its key; None if the text is not a valid certificate."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        return None


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate in PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    key: ec.EllipticCurvePrivateKey, *, serial: int, now: float, periods: Periods, valid: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(time_of(now - periods.backdated))
        .not_valid_after(time_of(now + valid))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issuer_key(ca: Pair) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def alternative(name: str) -> x509.GeneralName:
    """Return a DNS name or IP address in the form that a certificate holds."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def normal(name: str) -> str:
    """Return a DNS name or IP address as it reads back from a certificate."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def _names(certificate: x509.Certificate) -> frozenset[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return frozenset()  # a Secret can hold anything
    addresses = map(str, found.get_values_for_type(x509.IPAddress))
    return frozenset([*found.get_values_for_type(x509.DNSName), *addresses])


def _has_signed(ca: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def time_of(at: float) -> dt.datetime:
    """Return a Unix time in the form that ``cryptography`` takes."""
    return dt.datetime.fromtimestamp(at, tz=dt.UTC)
