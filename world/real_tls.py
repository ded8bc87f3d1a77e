"""TLS with OpenSSL: which certificates, what is asked of the other side, and what went wrong."""

import errno
import logging
import os
import ssl
from typing import Any, Final, cast

from busnode.world.network import Stream
from busnode.world.real_tls_stream import TlsStream
from busnode.world.tls import Certificate, Demand, TlsError, TlsTerms

logger = logging.getLogger(__name__)

NOT_OURS: Final = 0o077
"""What a private key's file should allow to nobody."""

FIRST_BYTES: Final = (b"\x15", b"\x16")
"""An alert or a handshake: anything else is no TLS."""

_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_WRONG_HOST: Final = (62, 64)
"""OpenSSL's numbers, see X509_verify_cert_error_string(3): a name, an address."""

_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "wants a certificate: name one with tls_cert and tls_key",
    "UNKNOWN_CA": "does not know who has signed our certificate: it must be one of its authorities",
    "CERTIFICATE_EXPIRED": "says that our certificate has expired: make a new one",
    "BAD_CERTIFICATE": "does not accept our certificate",
    "UNSUPPORTED_CERTIFICATE": "does not accept our certificate for this use",
    "CERTIFICATE_UNKNOWN": "does not accept our certificate",
    "PROTOCOL_VERSION": "speaks no version of TLS that we do: 1.2 and 1.3",
    "HANDSHAKE_FAILURE": "finds no cipher, or no certificate, that both sides have",
}


class RealTls:
    """Contexts of OpenSSL, made from files that can be read again."""

    def __init__(self, terms: TlsTerms) -> None:
        self._terms = terms
        self._context = _context(terms)

    def load(self) -> None:
        self._context = _context(self._terms)

    def wrap(self, stream: Stream, host: str | None) -> Stream:
        terms = self._terms
        checked = host.partition("%")[0] if host and terms.demand is Demand.HOST else None
        return TlsStream(
            stream, self._context, listens=terms.listens, host=checked,
            explain=lambda error, peer, first: _explained(error, host or str(peer), first, terms),
            admit=lambda connection: _admitted(connection, str(stream.peer), terms),
        )  # fmt: skip


def _context(terms: TlsTerms) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if terms.listens else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.check_hostname = terms.demand is Demand.HOST
    context.verify_mode = {
        Demand.NOTHING: ssl.CERT_NONE,
        Demand.OFFERED: ssl.CERT_OPTIONAL,
    }.get(terms.demand, ssl.CERT_REQUIRED)
    if terms.listens:
        # A session that is taken up again is not verified again: what a reload has ended would
        # live on in it.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    if terms.certificate is not None:
        _load_certificate(context, terms.certificate, terms.key or terms.certificate)
    if terms.demand is not Demand.NOTHING:
        _load_authorities(context, terms)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    for path in (certificate, key):
        _check_readable(path)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except _NeedsPassword:
        text = "the private key has a password: store it without"
        raise OSError(errno.EINVAL, text, key) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            text = f"the private key is not that of {certificate}"
            raise OSError(errno.EINVAL, text, key) from None
        which = _first_garbled(certificate, key)
        raise OSError(errno.EINVAL, "is no certificate or private key in PEM form", which) from None
    if os.stat(key).st_mode & NOT_OURS:
        logger.warning("others can read the private key %s: chmod 600 it", key)


class _NeedsPassword(Exception):
    pass


def _no_password() -> str:
    raise _NeedsPassword


def _first_garbled(certificate: str, key: str) -> str:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
    except ssl.SSLError:
        return certificate
    return key


def _load_authorities(context: ssl.SSLContext, terms: TlsTerms) -> None:
    if terms.authorities is None:
        context.load_default_certs()
        return
    _check_readable(terms.authorities)
    try:
        context.load_verify_locations(terms.authorities)
    except ssl.SSLError:
        text = "holds no certificates in PEM form"
        raise OSError(errno.EINVAL, text, terms.authorities) from None


def _check_readable(path: str) -> None:
    """OpenSSL does not say which file it could not open."""
    with open(path, "rb") as file:
        file.read(1)


def _admitted(connection: ssl.SSLObject, who: str, terms: TlsTerms) -> Certificate | None:
    if terms.demand is Demand.NOTHING:
        return None
    found = cast("dict[str, Any] | None", connection.getpeercert())
    if not found:
        return None
    if terms.demand is Demand.NODE and terms.listens:
        _check_node(connection, who)
    subject: dict[str, str] = dict(pair for part in found.get("subject", ()) for pair in part)
    names = tuple(str(value) for _, value in found.get("subjectAltName", ()))
    return Certificate(subject.get("commonName", ""), names)


def _check_node(connection: ssl.SSLObject, who: str) -> None:
    """OpenSSL sees to it that who is dialled has a server's certificate, but asks of who dials
    only whether it may be a client."""
    from cryptography import x509  # noqa: PLC0415 - 30 ms that nobody else needs
    from cryptography.x509.oid import ExtendedKeyUsageOID  # noqa: PLC0415

    shown = connection.getpeercert(binary_form=True)
    assert shown is not None
    try:
        usage = x509.load_der_x509_certificate(shown).extensions.get_extension_for_class(
            x509.ExtendedKeyUsage
        )
    except (x509.ExtensionNotFound, ValueError):
        allowed = False
    else:
        allowed = ExtendedKeyUsageOID.SERVER_AUTH in usage.value
    if not allowed:
        raise TlsError(f"{who} shows the certificate of a client; a node needs one of a server")


def _explained(error: ssl.SSLError, who: str, first: bytes, terms: TlsTerms) -> OSError:
    """The same for people. Only what trying again would not mend is a `TlsError`."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(_unverified(error, who, terms))
    if isinstance(error, ssl.SSLEOFError):
        return ConnectionResetError(errno.ECONNRESET, f"{who} closed the connection")
    if first and first not in FIRST_BYTES:
        return TlsError(f"{who} does not speak TLS: one side has it on and the other has not")
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return TlsError(f"{who} shows no certificate: it needs one that {_signers(terms)} signed")
    for alert, text in _ALERTS.items():
        if reason.endswith(f"ALERT_{alert}"):
            return TlsError(f"{who} {text}")
    if reason in ("UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER", "WRONG_VERSION_NUMBER"):
        return TlsError(f"{who} and we have no version or cipher of TLS in common: {reason}")
    return ConnectionError(f"TLS with {who} broke: {reason or error}")


def _unverified(error: ssl.SSLCertVerificationError, who: str, terms: TlsTerms) -> str:
    match error.verify_code:
        case code if code == _EXPIRED:
            return f"the certificate of {who} has expired: it needs a new one"
        case code if code == _NOT_YET_VALID:
            return f"the certificate of {who} is not valid yet: compare the clocks"
        case code if code in _WRONG_HOST:
            return (
                f"the certificate at {who} is not for {who}: dial it by a name or an address that "
                "stands in its certificate"
            )
        case _:
            return (
                f"the certificate of {who} is not signed by {_signers(terms)} "
                f"({error.verify_message}): name the authority that has signed it"
            )


def _signers(terms: TlsTerms) -> str:
    if terms.authorities is None:
        return "any authority that this machine trusts"
    return f"any authority of {terms.authorities}"
