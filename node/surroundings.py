"""What a node's settings mean on this machine: the address of an interface, who can find it."""

from dataclasses import replace

from busnode.node.config import BadSetting, NodeConfig
from busnode.node.settings import check_listen, is_loopback
from busnode.world.real_discovery import real_discovery
from busnode.world.real_interfaces import addresses_of
from busnode.world.real_world import real_world
from busnode.world.world import World

EVERYWHERE = ("", "0.0.0.0", "::")


def surroundings(config: NodeConfig) -> tuple[NodeConfig, World]:
    """The settings with the address to listen on, and the world. Raises BadSetting."""
    if config.interface is not None:
        try:
            listen = addresses_of(config.interface)[0]
        except OSError as error:
            raise BadSetting(f"--interface: {error.strerror}") from None
        config = replace(config, listen=listen, interface=None)
        check_listen(config)
    if config.peer_port is None:
        return config, real_world()
    interfaces = multicast_interfaces(config.listen)
    return config, real_world(real_discovery(config.seeds, interfaces, mdns=config.mdns))


def multicast_interfaces(listen: str) -> list[str] | None:
    """The addresses from which a node that listens there sends multicast; None is all of them."""
    if listen in EVERYWHERE:
        return None
    # Multicast is sent from an address, and localhost is none.
    return ["127.0.0.1"] if is_loopback(listen) and listen != "::1" else [listen]
