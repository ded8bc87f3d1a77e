"""The least that a mirror can do: receive, hash, write, sync, with nothing in between.

What catching up is measured against. It hashes what came as one piece, looks at no record, keeps no
numbers, and syncs in a thread while it goes on, as a node does.
"""

from mmap import mmap
from typing import Final

import trio
from xxhash import xxh3_64_intdigest

from busnode.wire.limits import KIB
from busnode.world.files import AppendFile
from busnode.world.network import Stream
from busnode.world.world import World

COPIED_BYTES: Final = 512 * KIB
"""Received and written at once, as a node does. Twice as much was no faster."""


async def copy_bare(world: World, stream: Stream, path: str, size_bytes: int) -> None:
    """So many bytes of a stream into a new file; they are durable when this returns."""
    buffer = memoryview(mmap(-1, COPIED_BYTES))
    file = world.files.append_to(path)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_sync_for_ever, world, file)
            while file.size_bytes < size_bytes:
                count = stream.receive_into(buffer)
                if count is None:
                    await stream.wait_readable()
                    continue
                if not count:
                    raise ConnectionError("the sender has closed the connection")
                xxh3_64_intdigest(buffer[:count])
                file.append(buffer[:count])
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await _sync(world, file)
    finally:
        file.close()


async def _sync_for_ever(world: World, file: AppendFile) -> None:
    while True:
        await _sync(world, file)
        await trio.lowlevel.checkpoint()


async def _sync(world: World, file: AppendFile) -> None:
    for error in await world.files.sync_all([file]):
        if error is not None:
            raise error
