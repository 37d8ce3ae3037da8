"""Certificates of servers on this machine."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa


def write_certificates(directory: Path) -> None:
    """Write ``ca.pem``, ``server-cert.pem`` and ``server-key.pem`` for localhost and 127.0.0.1."""
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    # MySQL 8.0.12's OpenSSL 1.0 has no cipher for an elliptic curve's key.
    server_key = rsa.generate_private_key(65537, 2048)

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])

    def certificate_builder(
        subject: str, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("tidelog test authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + 30 * day)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                False,
            )
        )

    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    authority = (
        certificate_builder("tidelog test authority", authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(usage, True)
        .sign(authority_key, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = (
        certificate_builder("localhost", server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(x509.SubjectAlternativeName(names), False)
        .sign(authority_key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    (directory / "ca.pem").write_bytes(authority.public_bytes(encoding))
    (directory / "server-cert.pem").write_bytes(server.public_bytes(encoding))
    (directory / "server-key.pem").write_bytes(
        server_key.private_bytes(
            encoding,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
