"""Which connections of a node are in TLS, by its settings."""

from typing import NamedTuple

from busnode.node.config import BadSetting, NodeConfig
from busnode.world.network import Network, Tls
from busnode.world.tls import Demand, TlsTerms

CLIENT_CERTIFICATES = {
    "none": Demand.NOTHING,
    "optional": Demand.OFFERED,
    "required": Demand.SIGNED,
}


class NodeTls(NamedTuple):
    """None: plain."""

    clients: Tls | None = None
    """For the listeners of clients and of HTTP."""
    peers: Tls | None = None
    """For the listener of other nodes."""
    dialling: Tls | None = None
    """For links to other nodes."""

    def reload(self) -> None:
        """Read all files again, for connections to come. OSError leaves all as it was, or some
        certificates new and others old: each is good in itself."""
        for each in self:
            if each is not None:
                each.load()


def open_tls(network: Network, config: NodeConfig) -> NodeTls:
    """BadSetting when something does not fit together or cannot be read."""
    check_tls(config)
    if config.tls_cert is None:
        return NodeTls()
    shown = (config.tls_cert, config.tls_key, config.tls_ca)
    # Without an authority there is nobody to believe who a node is; it is private all the same.
    of_nodes = Demand.NOTHING if config.tls_ca is None else Demand.NODE
    try:
        return NodeTls(
            network.tls(TlsTerms(True, CLIENT_CERTIFICATES[config.tls_client_cert], *shown)),
            network.tls(TlsTerms(True, of_nodes, *shown)),
            network.tls(TlsTerms(False, of_nodes, *shown)),
        )
    except OSError as error:
        raise BadSetting(f"TLS: {error.filename}: {error.strerror}") from error


def check_tls(config: NodeConfig) -> None:
    """BadSetting for a part of TLS without the rest."""
    if config.tls_cert is None and (config.tls_key or config.tls_ca):
        raise BadSetting("TLS needs a certificate: name it with --tls-cert, its key with --tls-key")
    if config.tls_cert is not None and config.tls_key is None:
        raise BadSetting("the certificate of --tls-cert needs its private key: --tls-key")
    if config.tls_client_cert != "none" and config.tls_ca is None:
        raise BadSetting(
            "certificates of clients cannot be verified without their authority: --tls-ca"
        )
