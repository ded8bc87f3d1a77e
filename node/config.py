"""What a node is told at its start, with the defaults of DESIGN."""

from dataclasses import dataclass

from busnode.wire.errors import BusnodeError
from busnode.wire.retry_schedule import Schedule
from busnode.world.network import Address

DAYS = 24 * 3600.0
HOURS = 3600.0
SECONDS = 1.0

RETRY = Schedule.parse("0,600,900,1200,1500")

CLIENT_PORT = 4250
PEER_PORT = 4251
HTTP_PORT = 4252


class BadSetting(BusnodeError):
    """A node was told something that cannot be; nothing was started."""

    code = "BAD_SETTING"
    advice = "Change the setting that the text names: `busnode start --help` lists them all."


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Everything that can be set; how it is read from flags, environment and file is `settings`."""

    cluster_id: str
    name: str | None = None
    """None: the name that the data directory has, or a new one."""
    data: str | None = None
    """None: ./busnode-data/<name>."""
    listen: str = "127.0.0.1"
    insecure: bool = False
    """Whether it may listen where others than this machine can reach it, without authentication."""
    tls_cert: str | None = None
    """The file of this node's certificate; None: nothing is in TLS."""
    tls_key: str | None = None
    tls_ca: str | None = None
    """The file of the authorities that sign certificates of nodes and clients."""
    tls_client_cert: str = "none"
    """Whether clients show a certificate: none, optional or required."""
    interface: str | None = None
    """The network interface whose address is listened on; None: `listen` says where."""
    port: int = CLIENT_PORT
    peer_port: int | None = PEER_PORT
    """None: this node stays alone."""
    cluster_key: str | None = None
    """The file with the key that nodes of this cluster show each other; None: nobody is asked."""
    users: str | None = None
    """The file that says who may come in as a client, and how they show it; None: everybody."""
    acl: str | None = None
    """The file that says what each may do; None: everything."""
    seeds: tuple[Address, ...] = ()
    mirrors: int = 1
    """Nodes that hold a copy of this one's logs."""
    mirror: str | None = None
    """The name of the node that comes first as a mirror."""
    catchup_rate: int | None = None
    """Bytes a second at which a mirror that is behind is sent what it lacks; None: no limit."""
    repair_after_s: float = 30 * SECONDS
    """How long a copy may be missing before another one is made."""
    compare_every_s: float = 6 * HOURS
    """How often copies are compared: a quarter of the time for which messages are kept by default,
    so that damage is found while there is another copy."""
    require_mirror: bool = False
    """Whether persistent messages are refused while no mirror is up."""
    mdns: bool = True
    """Whether nodes are announced and looked for by multicast."""
    http_port: int | None = HTTP_PORT
    """None: no HTTP."""
    storage: str = "files"
    retain_s: float = 1 * DAYS
    retain_bytes: int | None = None
    """For the whole store."""
    task_retry: Schedule = RETRY
    """When a task that failed is tried again, unless it has a schedule of its own."""
    queue_retries: tuple[tuple[str, Schedule], ...] = ()
    """The same for single queues."""
    adopt_after_s: float = 10 * SECONDS
    """How long a node may be gone before others go on with its tasks: it restarts within that."""
    retain_dead_s: float = 30 * DAYS
    """How long a dead letter waits for somebody to act."""
    segment_bytes_max: int = 64 * 1024 * 1024
    heartbeat_s: float = 15 * SECONDS
    """Three missed, and a peer is gone: at most 60 s."""
    link_heartbeat_s: float = 1 * SECONDS
    """Three missed, and another node is gone: its clients' messages go elsewhere within 4 s."""
    hello_timeout_s: float = 5 * SECONDS
    drain_timeout_s: float = 10 * SECONDS
    subscriptions_max: int = 10_000
    """For one client. A topic is matched against all that a hostile one can place."""
    clients_max: int = 10_000
    connections_per_address: int = 1000
    """A proxy or an office behind one address has hundreds of clients; one address must not take
    all places that there are."""
    handshakes_per_address: int = 100
    """A second. A handshake may cost milliseconds, with a certificate or a password more."""
    handshake_burst: int = 1000
    """All who may be there from one address come back together after an outage."""
    limit_loopback: bool = False
    """Whether limits by address count for this machine, too: what runs here has other means to
    harm the node, and thousands of clients of a test or a gateway are no attack."""
    half_open_max: int = 4000
    """Connections of one listener that have not greeted yet. One costs about a kilobyte, and who is
    let go comes again, which costs more: so rather some more of them, for a few seconds each."""
    connections_per_identity: int = 1000
    subscriptions_per_identity: int = 100_000
    """Ten clients with as many as one may have."""
    publish_rate: int | None = None
    """Messages a second of one identity; None: no limit, for back-pressure keeps a node whole."""
    publish_size_rate: int | None = None
    """Bytes a second that one identity may send."""
    in_flight_per_identity: int = 256 * 1024 * 1024
    """Bytes that wait for disks: four connections with as much as one may have."""
    memory_max: int | None = 1024 * 1024 * 1024
    """What is kept in memory for others, beside the node's own 50 MB: sixteen clients that do not
    read, with as much as may wait for each."""

    @property
    def asks_clients(self) -> bool:
        """Whether clients have to show who they are."""
        return self.users is not None or self.tls_client_cert == "required"

    @property
    def asks_nodes(self) -> bool:
        """Whether other nodes have to show that they are of this cluster."""
        return self.cluster_key is not None or self.tls_ca is not None
