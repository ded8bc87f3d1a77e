"""What can be set, and where: flags, then the environment, then a TOML file, then the defaults.

One table tells the name, the kind and the help of each setting. `retain` is `--retain` as a flag,
`BUSNODE_RETAIN` in the environment and `retain` in the file. Whatever is given is checked, also
where something stronger overrides it: a wrong value would only wait for a worse day.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final, NamedTuple

from busnode.node.config import PEER_PORT, BadSetting, NodeConfig
from busnode.node.logs import FORMATS, LEVELS, LogConfig
from busnode.node.logs import fields as log_fields
from busnode.node.setting_kinds import (
    Choice,
    Count,
    Duration,
    Kind,
    NodeName,
    OnOff,
    Port,
    QueueRetries,
    Retry,
    Seeds,
    Size,
    Storage,
    Switch,
    Text,
)

logger = logging.getLogger(__name__)

CLIENT_CERTIFICATES: Final = ("none", "optional", "required")
"""How much is asked of clients: see `node.tls`."""

PREFIX: Final = "BUSNODE_"
CONFIG: Final = f"{PREFIX}CONFIG"
"""Names the file."""
OF_OTHERS: Final = frozenset(
    {CONFIG, *(PREFIX + each for each in ("URL", "USER", "PASSWORD", "TOKEN"))}
)
"""What the environment may hold beside settings."""

FILE_BYTES_MAX: Final = 1024 * 1024
PATH_BYTES_MAX: Final = 4095


class Setting(NamedTuple):
    name: str
    """In the file; the flag has - for _."""
    kind: Kind
    help: str
    field: str
    """Of `NodeConfig` or of `LogConfig`."""
    owner: type[NodeConfig] | type[LogConfig] = NodeConfig

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def default(self) -> str | None:
        """As a person would write it; None where there is none."""
        for field in fields(self.owner):
            if field.name == self.field and field.default not in (MISSING, None, ()):
                return self.kind.write(field.default)
        return None


def _node(name: str, kind: Kind, help_: str, field: str | None = None) -> Setting:
    return Setting(name, kind, help_, field or name)


SETTINGS: Final = (
    _node("cluster_id", Text("ID"), "The cluster that this node belongs to. Required."),
    _node("name", NodeName(), "The node's name; it stays with its data directory."),
    _node(
        "data",
        Text("DIR", PATH_BYTES_MAX),
        "Its data directory; ./busnode-data/NAME if not given.",
    ),
    _node("listen", Text("HOST"), "The address to listen on, for clients and HTTP."),
    _node("insecure", Switch(), "Allow --listen beyond this machine without authentication."),
    _node("cluster_key", Text("FILE", PATH_BYTES_MAX), "The key that nodes show each other."),
    _node("users", Text("FILE", PATH_BYTES_MAX), "Who may come in, and how they show it."),
    _node("acl", Text("FILE", PATH_BYTES_MAX), "What each of them may do."),
    _node(
        "tls_cert",
        Text("FILE", PATH_BYTES_MAX),
        "This node's certificate: clients, nodes and HTTP come by TLS.",
    ),
    _node("tls_key", Text("FILE", PATH_BYTES_MAX), "The private key of --tls-cert."),
    _node("tls_ca", Text("FILE", PATH_BYTES_MAX), "Who signs certificates of nodes and clients."),
    _node(
        "tls_client_cert",
        Choice(*CLIENT_CERTIFICATES),
        "Whether clients show a certificate that --tls-ca has signed.",
    ),
    _node("interface", Text("IF"), "The network interface to listen on, in place of --listen."),
    _node("port", Port(), "For clients; 0 picks a free one."),
    _node("peer_port", Port(can_be_off=True), "For other nodes; 'off' to stay alone."),
    _node("seed", Seeds(PEER_PORT), "Another node's address for nodes; may be repeated.", "seeds"),
    _node("mdns", OnOff(), "Whether nodes find each other by multicast."),
    _node("http_port", Port(can_be_off=True), "For metrics, health and status; 'off' for none."),
    _node("mirrors", Count(0), "How many other nodes hold copies of this one's logs."),
    _node("mirror", NodeName(), "The node that comes first as a mirror."),
    _node("catchup_rate", Size(4096), "How much a second a mirror that is behind is sent."),
    _node(
        "repair_after",
        Duration(0.0),
        "How long a copy may be missing before another is made.",
        "repair_after_s",
    ),
    _node(
        "compare_every",
        Duration(1.0),
        "How often copies of logs are compared with those of other nodes.",
        "compare_every_s",
    ),
    _node("require_mirror", Switch(), "Refuse persistent messages while no mirror is up."),
    _node("storage", Storage(), "Where logs are kept: files, memory, or one that you installed."),
    _node("retain", Duration(1.0), "How long messages are kept.", "retain_s"),
    _node("retain_size", Size(), "How large all logs together may become.", "retain_bytes"),
    _node(
        "segment_size", Size(4096), "How large one file of a log may become.", "segment_bytes_max"
    ),
    _node("task_retry", Retry(), "When tasks that failed are tried again: seconds before each."),
    _node(
        "queue_retry", QueueRetries(), "The same for one queue; may be repeated.", "queue_retries"
    ),
    _node(
        "retain_dead", Duration(1.0), "How long dead letters wait for somebody.", "retain_dead_s"
    ),
    _node(
        "adopt_after",
        Duration(0.5),
        "How long a node may be gone before its tasks are adopted; from an old copy six times.",
        "adopt_after_s",
    ),
    _node("heartbeat", Duration(0.1, 20.0), "How often a silent client is asked.", "heartbeat_s"),
    _node("link_heartbeat", Duration(0.1, 20.0), "The same for other nodes.", "link_heartbeat_s"),
    _node("hello_timeout", Duration(0.1, 60.0), "How long a greeting may take.", "hello_timeout_s"),
    _node("drain_timeout", Duration(0.0), "How long leaving may take.", "drain_timeout_s"),
    _node("subscriptions_max", Count(), "How many subscriptions one client may have."),
    _node("clients_max", Count(), "How many clients there may be."),
    _node("connections_per_address", Count(), "How many connections one address may have."),
    _node("handshakes_per_address", Count(), "How many of them it may make a second."),
    _node("handshake_burst", Count(), "And how many at once after a pause."),
    _node("limit_loopback", OnOff(), "Whether limits by address count for this machine, too."),
    _node("half_open_max", Count(), "How many connections may be open that have not greeted."),
    _node("connections_per_identity", Count(), "How many connections one identity may have."),
    _node("subscriptions_per_identity", Count(), "How many subscriptions one identity may have."),
    _node("publish_rate", Count(), "How many messages a second one identity may publish."),
    _node("publish_size_rate", Size(1024), "How much a second one identity may send."),
    _node("in_flight_per_identity", Size(), "How much of one identity may wait for disks."),
    _node("memory_max", Size(1024 * 1024), "How much may be kept in memory for others."),
    Setting("log_format", Choice(*FORMATS), "How the log on stderr looks.", "format", LogConfig),
    Setting("log_level", Choice(*LEVELS), "What is worth a line in the log.", "level", LogConfig),
)

BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Settings:
    node: NodeConfig
    logs: LogConfig


def resolve(
    flags: Mapping[str, object], environment: Mapping[str, str], file: tuple[str, str] | None = None
) -> Settings:
    """All that was set, in one. `file` is the path and the text of a TOML file.

    Raises BadSetting, naming the place, for what is unknown, wrong or missing.
    """
    given: dict[str, Any] = {}
    if file is not None:
        given |= _from_file(*file)
    given |= _from_environment(environment)
    for name, raw in flags.items():
        if raw is not None:
            given[name] = _value(BY_NAME[name], raw, BY_NAME[name].flag)
    if "cluster_id" not in given:
        places = f"--cluster-id, {PREFIX}CLUSTER_ID, or cluster_id in the file"
        raise BadSetting(f"the cluster has no id: give it one with {places}")
    node = NodeConfig(**_of(NodeConfig, given))
    check_listen(node)
    return Settings(node, LogConfig(**_of(LogConfig, given)))


def check(config: NodeConfig) -> None:
    """BadSetting unless its names can be names, and it may listen where it is to: for nodes that a
    program has made."""
    for name in ("cluster_id", "name", "storage"):
        value = getattr(config, name)
        if value is not None:
            _value(BY_NAME[name], value, name)
    check_listen(config)


def check_listen(config: NodeConfig) -> None:
    """BadSetting where strangers could reach the node and nobody has said that they may."""
    if config.interface is not None and not is_loopback(config.listen):
        raise BadSetting("both an interface and an address to listen on: give one of them")
    missing = _asked_of_nobody(config)
    if missing and not config.insecure and not is_loopback(config.listen):
        raise BadSetting(
            f"listening on {config.listen} would let everybody who can reach it read and write "
            f"messages, since nobody is asked who they are: give {' and '.join(missing)}, listen "
            "on 127.0.0.1, or accept that with --insecure"
        )


def warn_if_open(config: NodeConfig) -> None:
    """Say out loud what `insecure` has allowed."""
    missing = _asked_of_nobody(config)
    if missing and not is_loopback(config.listen):
        logger.warning(
            "everybody who can reach this node can read and write all messages: --insecure",
            extra=log_fields(listen=config.listen, missing=" ".join(missing)),
        )


def _asked_of_nobody(config: NodeConfig) -> list[str]:
    """What it would take for strangers to be kept out."""
    missing: list[str] = []
    if not config.asks_nodes and config.peer_port is not None:
        missing.append("--cluster-key")
    if not config.asks_clients:
        missing.append("--users")
    return missing


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. A name that we would have to look up is not."""
    if host in ("127.0.0.1", "localhost", "::1"):
        return True
    from ipaddress import ip_address  # noqa: PLC0415 - hardly ever needed

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def safe_name(host: str) -> str:
    """A node's name from a host's."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", host).strip("._-")[:63]
    return cleaned or "node"


def _of(owner: type[NodeConfig] | type[LogConfig], given: Mapping[str, Any]) -> dict[str, Any]:
    mine = (setting for setting in SETTINGS if setting.owner is owner)
    return {setting.field: given[setting.name] for setting in mine if setting.name in given}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or variable in OF_OTHERS or not text:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in BY_NAME or variable != BY_NAME[name].variable:
            names = {setting.variable for setting in SETTINGS} | OF_OTHERS
            raise BadSetting(f"the environment variable {variable} {_unknown(variable, names)}")
        given[name] = _value(BY_NAME[name], text, variable)
    return given


def _from_file(path: str, text: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - most nodes have no file

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(f"{path} is no TOML: {error}") from None
    given: dict[str, Any] = {}
    for key, raw in table.items():
        name = key.replace("-", "_")
        if name not in BY_NAME:
            raise BadSetting(f"{path}: {key!r} {_unknown(name, set(BY_NAME))}")
        if name in given:
            raise BadSetting(f"{path}: {name} stands there twice, once as {key!r}")
        given[name] = _value(BY_NAME[name], raw, f"{path}: {key}")
    return given


def _value(setting: Setting, raw: object, place: str) -> Any:
    try:
        return setting.kind.read(raw)
    except ValueError as error:
        raise BadSetting(f"{place}: {str(raw)[:100]!r} {error}") from None


def _unknown(name: str, names: set[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - as above

    near = get_close_matches(name, sorted(names), n=1)
    return "is no setting" + (f"; did you mean {near[0]}?" if near else "")
