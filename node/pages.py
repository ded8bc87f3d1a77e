"""What a node shows over HTTP."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from busnode.node.http import Answer, Page, json_answer
from busnode.node.status import status, unready
from busnode.world.real_import import import_in_thread

if TYPE_CHECKING:
    from busnode.node.node import RunningNode


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
