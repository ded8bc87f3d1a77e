"""Every limit of the protocol, with its reason. Promise 6: everything is bounded."""

KIB = 1024
MIB = 1024 * KIB

PROTOCOL_VERSION = 1

FRAME_BYTES_MAX = 8 * MIB
"""A whole batch. Large enough for a document or a picture as one message, small enough that the
receive buffers of a thousand connections that each hold one unfinished frame fit into a machine."""

BATCH_MESSAGES_MAX = 4096
"""Messages in a batch. The decoder of msgpack allocates a list when it sees its announced length,
and lists can nest 1024 deep: 1024 × 4096 × 8 B = 32 MiB is the most that announced lengths can make
a consumer allocate. What is really there costs more than its bytes, at worst 20 times as much:
short texts in lists that never end, 156 MiB for a whole frame of them. The fixed cost of a batch is
below 1 % of the whole from 1000 messages on, so more would gain nothing."""

PAYLOAD_BYTES_MAX = FRAME_BYTES_MAX - 64 * KIB
"""One payload: a frame less its header, topic, message id and headers."""

MESSAGE_ID_BYTES_MAX = 128
"""An id is a UUID, a ULID or a key of that size; it is kept in de-duplication windows."""

HEADERS_MAX = 64
"""Headers of one message: metadata, not data."""

HEADERS_BYTES_MAX = 16 * KIB
"""All header names and values of one message, as HTTP servers limit theirs."""

CONTROL_ELEMENTS_MAX = 1024
"""Elements of any array in a control message. As above: announced lengths can make a node allocate
1024 × 1024 × 8 B = 8 MiB; what is really there costs at worst 64 times its bytes (empty arrays)."""

HELLO_BYTES_MAX = 1 * KIB
"""What a stranger may make us read before we know who it is."""

CONTROL_BYTES_MAX = 64 * KIB
"""Any other control message without a limit of its own."""

SUBSCRIBE_BYTES_MAX = 2 * MIB
"""A subscription carries its whole position: about 20,000 logs at 100 bytes. Reading one of twice
that size would hold up the event loop for longer than a hostile client may."""

REQUEST_BYTES_MAX = 1 * MIB
"""A request or a reply: it is held in memory by every node on its way and never on a disk."""

TASKS_MAX = 1000
"""Tasks in one frame: each list in it has at most `CONTROL_ELEMENTS_MAX` elements."""

NAME_BYTES_MAX = 128
"""Names of nodes, clients, clusters, queues and durable subscriptions."""

SECRET_BYTES_MAX = 512
"""A password or a token: with the names beside it a HELLO still fits."""

TEXT_BYTES_MAX = 1 * KIB
"""Human text in an ERROR or GOODBYE."""
