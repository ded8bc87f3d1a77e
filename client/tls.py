"""TLS of a client: what its URL and its options ask for."""

from typing import TypedDict

from busnode.client.directory import TLS_SCHEME, speaks_tls
from busnode.client.world import ClientWorld
from busnode.wire.errors import Refused, TlsFailed
from busnode.world.network import Tls
from busnode.world.tls import Demand, TlsTerms


class TlsOptions(TypedDict, total=False):
    """Of `connect`."""

    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None


def client_tls(
    world: ClientWorld, url: str, ca: str | None, certificate: str | None, key: str | None
) -> Tls | None:
    """None for a plain URL. Refused for options that say otherwise: nobody shall believe that a
    connection is private which is not. TlsFailed for a file that is missing or garbled."""
    if not speaks_tls(url):
        if ca is not None or certificate is not None or key is not None:
            raise Refused(f"TLS was asked for, and the url does not begin with {TLS_SCHEME}")
        return None
    if (certificate is None) != (key is None):
        raise Refused("a certificate to show needs its private key, and the other way round")
    try:
        return world.network.tls(TlsTerms(False, Demand.HOST, certificate, key, ca))
    except OSError as error:
        raise TlsFailed(f"{error.filename}: {error.strerror}") from error
