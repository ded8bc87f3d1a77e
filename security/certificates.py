"""A small authority of one's own, and the certificates that it signs.

For a cluster without a department for such things: one authority, a certificate for each node and
for each client that shows one. Elliptic keys (P-256), which every TLS since 1.2 speaks.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 825
"""The most that common TLS libraries accept of a server's certificate."""

EARLIER: Final = timedelta(hours=1)
"""Certificates are valid since before they were made: clocks differ."""

NAME_CHARACTERS_MAX: Final = 64
"""Of a subject's common name, by X.520."""


class BadCertificate(ValueError):
    """The text says what is wrong with what was given."""


class Pem(NamedTuple):
    """A certificate and its private key, as they stand in files."""

    certificate: bytes
    key: bytes


def make_authority(name: str, utc_us: int, days: float = AUTHORITY_DAYS) -> Pem:
    """Somebody whose signature one's own nodes and clients trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    builder = _builder(subject, subject, key, utc_us, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _pem(builder.sign(key, hashes.SHA256()), key)


def make_certificate(
    authority: Pem,
    name: str,
    hosts: Iterable[str],
    utc_us: int,
    *,
    is_node: bool = True,
    days: float = CERTIFICATE_DAYS,
) -> Pem:
    """Signed by the authority. A node's may be shown by who is dialled and by who dials; a client's
    only by who dials. BadCertificate where the authority is none."""
    signer, signing_key = _opened(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_subject(name), signer.subject, key, utc_us, days)
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if is_node:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key())
    builder = builder.add_extension(issued_by, critical=False)
    names = [_host(host) for host in dict.fromkeys(hosts)]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _pem(builder.sign(signing_key, hashes.SHA256()), key)


def _opened(authority: Pem) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(authority.certificate)
        key = load_pem_private_key(authority.key, None)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise BadCertificate(f"is no authority with its key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not constraints.value.ca:
        raise BadCertificate("is the certificate of no authority that was made here")
    if key.public_key() != certificate.public_key():
        raise BadCertificate("has a key that is another's")
    return certificate, key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    utc_us: int,
    days: float,
) -> x509.CertificateBuilder:
    now = datetime.fromtimestamp(utc_us / 1_000_000, UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    end = now + timedelta(days=days)
    builder = builder.not_valid_before(min(now, end) - EARLIER).not_valid_after(end)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return builder.add_extension(identifier, critical=False)


def _subject(name: str) -> x509.Name:
    if not name or not name.isprintable() or len(name) > NAME_CHARACTERS_MAX:
        raise BadCertificate(
            f"{name[:100]!r} cannot be a name: 1 to {NAME_CHARACTERS_MAX} printable characters"
        )
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host.partition("%")[0]))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise BadCertificate(f"{host[:100]!r} is no name of a host: {error}") from None


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pem:
    return Pem(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
