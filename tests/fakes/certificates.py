"""Provide a certificate authority for tests: it certifies servers by name."""

import datetime as dt
from dataclasses import dataclass
from typing import Self

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Authority:
    """A key, and its certificate, signed by itself."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def named(cls, name: str) -> Self:
        """Create one."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, issuer=name, key=key)
        ca = x509.BasicConstraints(ca=True, path_length=None)
        return cls(key, builder.add_extension(ca, critical=True).sign(key, hashes.SHA256()))

    @property
    def pem(self) -> bytes:
        """Return the certificate, as agents get it."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def server(self, name: str) -> grpc.ServerCredentials:
        """Return the certificate and key of a server of that DNS name."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        builder = _builder("server", issuer=str(issuer), key=key)
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        signed = builder.add_extension(names, critical=False).sign(self.key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return grpc.ssl_server_credentials([(private, signed.public_bytes(serialization.Encoding.PEM))])


def _builder(name: str, *, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )
