"""What a node shows over HTTP."""

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from busnode.node.access import check_right
from busnode.node.event_kinds import ACCESS_REFUSED
from busnode.node.http import Answer, Page, json_answer
from busnode.node.status import status, unready
from busnode.wire.control import Hello
from busnode.wire.errors import BusnodeError, Forbidden, NotAuthenticated
from busnode.wire.ids import Topic
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.world.network import Address
from busnode.world.real_import import import_in_thread

if TYPE_CHECKING:
    from busnode.node.node import RunningNode


HEALTH: Final = "/health/"
"""For whoever asks: it says nothing but whether this node is well."""


async def may_read(
    node: "RunningNode", path: str, authorization: str, address: Address
) -> BusnodeError | None:
    """Why somebody may not read a page, by `Authorization: Bearer TOKEN` or a user and a password;
    None when they may. Whether there is such a page is not told to who may not read it."""
    if path.startswith(HEALTH) or not node.access.asks_clients:
        return None
    try:
        shown = await node.access.authenticate(_hello(authorization), None, address.host)
        check_right(node.access.rights(shown.identity), "admin", _topic(path))
    except (NotAuthenticated, Forbidden) as error:
        who = "somebody" if isinstance(error, NotAuthenticated) else error.text.split(" ", 1)[0]
        node.audit.refused(ACCESS_REFUSED, who=who, address=address, why=f"HTTP: {error.text}")
        return error
    return None


def _topic(path: str) -> Topic:
    """What rules know a page by; no other path has a name of its own."""
    return Topic(f"/$sys{path}" if path in ("/status", "/metrics") else "/$sys/http")


def _hello(authorization: str) -> Hello:
    """What a header says as a client would say it."""
    scheme, _, rest = authorization.partition(" ")
    user, secret = "", ""
    if scheme.lower() == "bearer":
        secret = rest.strip()
    elif scheme.lower() == "basic":
        try:
            user, _, secret = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
        except ValueError:
            secret = rest
    return Hello(PROTOCOL_VERSION, "http", 0, user, secret)


def pages(node: "RunningNode") -> Mapping[str, Page]:
    """Each page by its path."""

    async def live() -> Answer:
        return json_answer({"live": True})

    async def ready() -> Answer:
        reason = unready(node)
        if reason is None:
            return json_answer({"ready": True})
        return json_answer({"ready": False, "reason": reason}, 503)

    async def whole_status() -> Answer:
        return json_answer(status(node))

    async def metrics() -> Answer:
        # Not before somebody asks: prometheus_client takes as long to import as all the rest.
        library: Any = await import_in_thread("busnode.node.metrics")
        body, content_type = await library.render(node)
        return Answer(200, body, content_type)

    return {
        "/health/live": live,
        "/health/ready": ready,
        "/metrics": metrics,
        "/status": whole_status,
    }
