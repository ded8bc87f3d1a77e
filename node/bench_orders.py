"""What a player of a benchmark is told and says: lines of JSON on stdin and stdout."""

import json
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

from busnode.node.bench_segments import PAYLOAD_BYTES
from busnode.world.real_anyio import run_in_thread
from busnode.world.world import World

Order = dict[str, Any]
Answer = dict[str, Any]

SAMPLES: Final = 1024
"""Different payloads that are sent again and again: nobody is to be served from one cache line."""


def say(answer: Answer) -> None:
    print(json.dumps(answer), flush=True)


async def orders(**more: Any) -> AsyncIterator[Order]:
    """Say that we stand, then each line that we are told."""
    say({"ready": True, **more})
    while line := await run_in_thread(_read_line, None):
        yield json.loads(line)


def _read_line(_: None) -> str:
    return sys.stdin.readline()


def sample_payloads(world: World) -> list[bytes]:
    return [
        b"".join(world.entropy.u64().to_bytes(8, "little") for _ in range(PAYLOAD_BYTES // 8))
        for _ in range(SAMPLES)
    ]
