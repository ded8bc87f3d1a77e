"""What a client shows a node to be let in."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from busnode.wire.errors import Refused
from busnode.wire.producer_tag import tagged

USER: Final = "BUSNODE_USER"
PASSWORD: Final = "BUSNODE_PASSWORD"
TOKEN: Final = "BUSNODE_TOKEN"
"""Where the environment has them, for who gives none."""

CERTIFICATE_BYTES_MAX: Final = 1024 * 1024
"""A file with a certificate, and those of who has signed it."""


class Credentials(NamedTuple):
    """A user with a password, or a token, or the name in a certificate, or nothing."""

    user: str = ""
    password: str = ""
    token: str = ""
    certificate: str = ""

    def __repr__(self) -> str:
        return f"Credentials({self.identity!r})"

    @property
    def identity(self) -> str:
        """Who that is; a token begins with it."""
        return self.user or self.token.rpartition(".")[0] or self.certificate

    @property
    def secret(self) -> str:
        return self.password if self.user else self.token

    def producer_id(self, drawn: int) -> int:
        """A producerId with which nodes let this one publish."""
        return tagged(drawn, self.identity)


def name_in(certificate: bytes) -> str:
    """The common name of a certificate in PEM form; "" where it has none."""
    from cryptography import x509  # noqa: PLC0415 - few show one, and it takes a while
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    subject = x509.load_pem_x509_certificate(certificate).subject
    found = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def make_credentials(
    user: str | None,
    password: str | None,
    token: str | None,
    environment: Mapping[str, str],
    certificate: str | None = None,
) -> Credentials:
    """From what was given, or else from the environment, or else there is the name in a certificate
    that TLS shows. Refused for what does not fit."""
    if user is None and password is None and token is None:
        given = (environment.get(name, "") for name in (USER, PASSWORD, TOKEN))
        found = Credentials(*given)
        if found.token:
            found = Credentials(token=found.token)
    else:
        found = Credentials(user or "", password or "", token or "")
    if found.user and found.token:
        raise Refused("a user and a token: a token says whose it is, give one of them")
    if bool(found.user) != bool(found.password):
        raise Refused("a user without a password, or a password without a user: give both")
    if not found.user and not found.token and certificate is not None:
        return Credentials(certificate=certificate)
    if found.token and not found.identity:
        raise Refused("this is no token: they look like NAME.SECRET, as `busnode user add` prints")
    return found
