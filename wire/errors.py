"""Every error that busnode raises, in one tree.

    BusnodeError
    ├── ProtocolError              the other side broke the protocol: the session ends
    │   ├── BadFrame               BAD_FRAME          a prefix that no frame can have
    │   ├── FrameTooLarge          FRAME_TOO_LARGE    a length over the limit of its type
    │   ├── BadVersion             BAD_VERSION        a protocol version that we do not speak
    │   ├── BadHash                BAD_HASH           bytes changed on the way
    │   ├── BadBatch               BAD_BATCH          a batch whose header or columns make no sense
    │   ├── BadControl             BAD_CONTROL        a control message of the wrong shape
    │   ├── WrongCluster           WRONG_CLUSTER      a node of another cluster has dialled
    │   ├── NotAuthenticated       NOT_AUTHENTICATED  who it is was not shown
    │   └── UnexpectedFrame        UNEXPECTED_FRAME   a frame that this state of the session forbids
    ├── Refused                    one request is refused: the session goes on
    │   ├── BadTopic               BAD_TOPIC
    │   ├── BadPattern             BAD_PATTERN
    │   ├── BadOption              BAD_OPTION         an option or column that the pipeline lacks
    │   ├── BatchTooLarge          BATCH_TOO_LARGE    refused before it is sent
    │   ├── LimitReached           LIMIT_REACHED
    │   ├── NotMirrored            NOT_MIRRORED       no mirror is up; nothing was appended
    │   ├── RequestFailed          REQUEST_FAILED     the provider answered with an error
    │   ├── BadTask                BAD_TASK           an option that no task can have
    │   ├── UnknownQueue           UNKNOWN_QUEUE      no node has a queue of this name
    │   ├── LeaseExpired           LEASE_EXPIRED      the task is not, or no more, yours to settle
    │   ├── TlsFailed              TLS_FAILED         one side does not accept the other's TLS
    │   └── Forbidden              FORBIDDEN          not allowed, or not there: one answer
    ├── Unavailable                a passing fault: try again, here or at another node
    │   ├── Draining               DRAINING           the node is leaving
    │   ├── NoProvider             NO_PROVIDER        nobody answers requests on this topic
    │   ├── Disconnected           DISCONNECTED       no node could be reached before the deadline
    │   └── TimedOut               TIMED_OUT
    └── StorageError               this node's disk
        ├── DataDirectoryInUse     DATA_DIRECTORY_IN_USE
        ├── NotADataDirectory      NOT_A_DATA_DIRECTORY
        ├── BadRecord              BAD_RECORD         a record with a bad hash, quarantined
        ├── DataLost               DATA_LOST          messages that no copy within reach has
        ├── LogPoisoned            LOG_POISONED       a write or sync failed; this log takes no more
        ├── SecondWriter           SECOND_WRITER      a log has one writer for its whole life
        └── StorageFailed          STORAGE_FAILED     the system refused a file operation

The code goes over the wire and never changes its meaning. The text is for people: what happened,
what was expected, what to do.
"""

from typing import ClassVar


class BusnodeError(Exception):
    """Base of all our errors."""

    code: ClassVar[str] = "INTERNAL"
    ends_session: ClassVar[bool] = False
    advice: ClassVar[str] = "This is a bug in busnode: report it with the log around it."

    def __init__(self, text: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class ProtocolError(BusnodeError):
    code = "PROTOCOL"
    ends_session = True
    advice = "Check that both sides run versions of busnode that speak the same protocol."


class BadFrame(ProtocolError):
    code = "BAD_FRAME"
    advice = "Something that does not speak busnode's protocol is talking to this port."


class FrameTooLarge(ProtocolError):
    code = "FRAME_TOO_LARGE"
    advice = "Send less at once: the limits stand in docs/protocol.md."


class BadVersion(ProtocolError):
    code = "BAD_VERSION"
    advice = "Upgrade the older side."


class BadHash(ProtocolError):
    code = "BAD_HASH"
    advice = (
        "Bytes were damaged on the way. The sender sends again; if it recurs, suspect the network."
    )


class BadBatch(ProtocolError):
    code = "BAD_BATCH"
    advice = "The producer's library made a batch that cannot be read: upgrade or mend it."


class BadControl(ProtocolError):
    code = "BAD_CONTROL"
    advice = "The other side's library made a message of the wrong shape: upgrade or mend it."


class UnexpectedFrame(ProtocolError):
    code = "UNEXPECTED_FRAME"
    advice = (
        "The other side sent a frame out of turn: the session tables stand in docs/protocol.md."
    )


class WrongCluster(ProtocolError):
    """A node of another cluster is at the other end."""

    code = "WRONG_CLUSTER"
    advice = "Give both nodes the same --cluster-id, or take the other one out of --seed."


class NotAuthenticated(ProtocolError):
    """Whoever it is has not shown it: no credentials, wrong ones, or another cluster key."""

    code = "NOT_AUTHENTICATED"
    advice = (
        "Clients: name a user and a password or a token (BUSNODE_USER, BUSNODE_PASSWORD, "
        "BUSNODE_TOKEN). Nodes: give all of a cluster the same --cluster-key."
    )


class Refused(BusnodeError):
    code = "REFUSED"
    advice = "Change the request as its text says."


class BadTopic(Refused):
    """What was given as a topic is none."""

    code = "BAD_TOPIC"
    advice = "A topic is a path such as /plant/north/temp, at most 255 bytes, with no empty level."


class BadPattern(Refused):
    """What was given as a pattern is none."""

    code = "BAD_PATTERN"
    advice = "A pattern is a topic, with + for one level or a last level * for all that follows."


class BadOption(Refused):
    """What a table of the pipeline was asked for with makes no sense; the text names it."""

    code = "BAD_OPTION"
    advice = "Change the option or the column that the text names: see docs/pipeline.md."


class BatchTooLarge(Refused):
    """What was to be published is larger than a batch may be; nothing was sent."""

    code = "BATCH_TOO_LARGE"
    advice = "Send smaller payloads, or put the data elsewhere and its address on the bus."


class LimitReached(Refused):
    """Something that is bounded is full: the text names it."""

    code = "LIMIT_REACHED"
    advice = "Use fewer of what the text names, or raise the limit in the node's configuration."


class NotMirrored(Refused):
    code = "NOT_MIRRORED"
    advice = "Start a second node, or publish without asking for a mirror. Nothing was appended."


class BadTask(Refused):
    """An option that no task can have; nothing was sent."""

    code = "BAD_TASK"
    advice = "Change the option that the text names."


class UnknownQueue(Refused):
    """No node of the cluster has a queue of this name."""

    code = "UNKNOWN_QUEUE"
    advice = "Check the spelling: `busnode task ls` lists the queues. The first task makes one."


class LeaseExpired(Refused):
    """The task is not, or no more, the worker's to settle: its lease ran out, or another has it."""

    code = "LEASE_EXPIRED"
    advice = "Somebody else gets the task. Ask for a longer lease, or extend it while working."


class TlsFailed(Refused):
    """A certificate that is not accepted, or one side without TLS: no retry mends that."""

    code = "TLS_FAILED"
    advice = (
        "Compare both sides: bus+tls:// goes with a node that has --tls-cert, its host must stand "
        "in that certificate, and the authority that has signed it be given with --tls-ca, tls_ca= "
        "or BUSNODE_TLS_CA. See docs/security.md."
    )


class Forbidden(Refused):
    code = "FORBIDDEN"
    advice = "Ask whoever runs the cluster for the right, or check the spelling of the name."


class Unavailable(BusnodeError):
    code = "UNAVAILABLE"
    advice = "Try again, here or at another node."


class Draining(Unavailable):
    """The node is leaving and takes nothing new."""

    code = "DRAINING"
    advice = "This node is leaving: connect to another one. The client library does so by itself."


class NoProvider(Unavailable):
    """Nobody answers requests on this topic."""

    code = "NO_PROVIDER"
    advice = "Start the service that answers on this topic, or check the spelling of the topic."


class Disconnected(Unavailable):
    """No node could be reached before the deadline."""

    code = "DISCONNECTED"
    advice = "Check that a node runs at the address, and that nothing between blocks the port."


class TimedOut(Unavailable):
    """No answer came in time."""

    code = "TIMED_OUT"
    advice = "Try again; `busnode status` tells which node is slow."


class RequestFailed(Refused):
    """The provider answered the request with an error."""

    code = "REQUEST_FAILED"
    advice = "The text comes from the service that answers on this topic: look at its log."


class StorageError(BusnodeError):
    code = "STORAGE"
    advice = "Look at the node's disk: `busnode log verify DIR` names what is wrong."


class DataDirectoryInUse(StorageError):
    """Another process has the data directory open; two would damage each other's logs."""

    code = "DATA_DIRECTORY_IN_USE"
    advice = "Stop the other node, or give this one a directory of its own with --data."


class NotADataDirectory(StorageError):
    """The folder does not hold a node's data."""

    code = "NOT_A_DATA_DIRECTORY"
    advice = "Name the directory that holds a node's `logs` folder: busnode-data/<node name>."


class BadRecord(StorageError):
    code = "BAD_RECORD"
    advice = "The range is quarantined; another copy can fill it. Nothing around it is lost."


class DataLost(StorageError):
    """Messages that were asked for are in no copy within reach; the text names file and range."""

    code = "DATA_LOST"
    advice = "Name the data directory of a mirror too, or set failOnDataLoss to false to go on."


class LogPoisoned(StorageError):
    code = "LOG_POISONED"
    advice = "Mend the disk. The node goes on under a new brokerId and keeps the old log readable."


class SecondWriter(StorageError):
    code = "SECOND_WRITER"
    advice = "Two processes claim one log: a data directory may have been cloned. Stop one of them."


class StorageFailed(StorageError):
    code = "STORAGE_FAILED"
    advice = "Check free space, permissions and the system's log for disk errors."


def _descendants(root: type[BusnodeError]) -> list[type[BusnodeError]]:
    found = [root]
    for child in root.__subclasses__():
        found.extend(_descendants(child))
    return found


def is_family(error: type[BusnodeError]) -> bool:
    """Whether a class of this tree stands for several. One that another module derives from it, for
    a text or an advice of its own, does not make it one."""
    return any(child.__module__ == __name__ for child in error.__subclasses__())


BY_CODE: dict[str, type[BusnodeError]] = {error.code: error for error in _descendants(BusnodeError)}
"""Every code, for `busnode explain` and for turning an ERROR frame back into an exception."""
