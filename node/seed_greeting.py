"""What answers at the address of a seed: dialled and greeted as a node would, then left alone."""

import os
from dataclasses import dataclass
from typing import Final

import trio

from busnode.wire.control import Error, PeerHello, PeerWelcome, encode_control
from busnode.wire.errors import BusnodeError, TimedOut
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.wire.reader import FrameReader, Runs
from busnode.world.network import Address, Stream
from busnode.world.world import World

DIAL_S: Final = 2.0
GREET_S: Final = 2.0
"""As nodes do it."""

NAME: Final = "busnode doctor"


@dataclass(frozen=True, slots=True)
class SeedAnswer:
    """Either the node that has welcomed us, or why none has."""

    seed: Address
    node: str | None
    code: str | None = None
    """Of the error, where a node has refused us; None where nobody has answered as a node."""
    error: str | None = None


async def greet_seed(world: World, seed: Address, cluster_id: str) -> SeedAnswer:
    """A node of that cluster takes us for a new one, until we hang up a moment later."""
    try:
        with trio.fail_after(DIAL_S):
            stream = await world.network.dial(seed)
    except trio.TooSlowError:
        return SeedAnswer(seed, None, error=f"nobody takes the connection for {DIAL_S:g} s")
    except OSError as error:
        # Without what the library has to say of where, which is known.
        text = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        return SeedAnswer(seed, None, error=text)
    hello = PeerHello(PROTOCOL_VERSION, cluster_id, world.entropy.broker_id(), NAME, [], [])
    try:
        with trio.fail_after(GREET_S):
            await _send(stream, encode_control(hello))
            return await _answer(stream, seed)
    except trio.TooSlowError:
        text = f"it takes connections and says nothing for {GREET_S:g} s"
        return SeedAnswer(seed, None, error=text)
    except (OSError, BusnodeError) as error:
        return SeedAnswer(seed, None, error=f"it does not speak as a node does: {error}")
    finally:
        stream.close()


async def _send(stream: Stream, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[stream.send(view) :]
        if view:
            await stream.wait_writable()


async def _answer(stream: Stream, seed: Address) -> SeedAnswer:
    reader = FrameReader()
    while True:
        count = stream.receive_into(reader.space())
        if count is None:
            await stream.wait_readable()
            continue
        if not count:
            raise ConnectionError("it closes the connection")
        reader.received(count)
        for event in reader.events():
            match event:
                case PeerWelcome(node=name):
                    return SeedAnswer(seed, name)
                case Error(code=TimedOut.code):
                    return SeedAnswer(seed, None, error=event.text)
                case Error(code=code, text=text):
                    return SeedAnswer(seed, None, code, text)
                case Runs():
                    raise ConnectionError("it sends messages without a greeting")
                case _:
                    raise ConnectionError(f"its first word is {event.TYPE.name}")
