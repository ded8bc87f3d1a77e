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
    interface: str | None = None
    """The network interface whose address is listened on; None: `listen` says where."""
    port: int = CLIENT_PORT
    peer_port: int | None = PEER_PORT
    """None: this node stays alone."""
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
