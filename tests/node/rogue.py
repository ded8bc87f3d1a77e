"""A rogue node in a process of its own, with the right cluster id: it dials in, or is dialled.

Run as `python -m tests.node.rogue PLAN`, where the plan is JSON. It prints, as JSON, every byte
that it has got. It has no key but what the plan gives it, and knows the protocol well.
"""

import json
import os
import socket
import sys
import time
from contextlib import suppress
from typing import Any, Final

from busnode.security.cluster_key import ClusterKey, Transcript
from busnode.wire.control import (
    Control,
    FindRegistration,
    Interest,
    MembersSeen,
    PeerChallenge,
    PeerHello,
    PeerProof,
    PeerWelcome,
    Ping,
    Replay,
    TaskPoll,
    encode_control,
)
from busnode.wire.ids import BrokerId
from busnode.wire.limits import PROTOCOL_VERSION
from busnode.wire.reader import FrameReader
from busnode.wire.sessions import Side

WAIT_S: Final = 5.0
NAME: Final = "rogue"


def greedy() -> bytes:
    """All that a peer may ask for."""
    broker = BrokerId(os.urandom(16))
    wanted: list[Control] = [
        MembersSeen([]),
        Interest(1, "/*", None, 1, 1 << 40),
        Interest(2, "/$sys/*", None, 1, 1 << 40),
        Interest(3, "/*", "g", 1, 1 << 40),
        FindRegistration("ada:d"),
        TaskPoll(1, "q", 100, 20.0, 1, "w"),
        Replay(0, 0, broker, "/secret/a", 0, None, 1 << 20),
        Ping(7),
    ]
    return b"".join(encode_control(each) for each in wanted)


class Line:
    """One connection, with all that came over it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.heard = b""
        self.reader = FrameReader(copies=True)
        sock.settimeout(WAIT_S)

    def send(self, *frames: Control | bytes) -> None:
        with suppress(OSError):
            for frame in frames:
                self.sock.sendall(frame if isinstance(frame, bytes) else encode_control(frame))

    def receive(self) -> list[Any]:
        """What comes next; nothing at the end."""
        try:
            data = self.sock.recv(65536)
        except OSError:
            return []
        if not data:
            return []
        self.heard += data
        self.reader.space()[: len(data)] = data
        self.reader.received(len(data))
        return [*self.reader.events()] or [None]

    def until(self, kind: type[Control]) -> Any:
        while events := self.receive():
            for event in events:
                if isinstance(event, kind):
                    return event
        return None

    def listen(self, seconds: float) -> None:
        """Until it is closed, or for so long."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.sock.settimeout(max(0.01, end - time.monotonic()))
            try:
                data = self.sock.recv(65536)
            except OSError:
                return
            if not data:
                return
            self.heard += data


def hello(plan: dict[str, Any], broker_id: BrokerId, key_id: bytes, nonce: bytes) -> PeerHello:
    name = "" if key_id else NAME
    return PeerHello(PROTOCOL_VERSION, plan["cluster_id"], broker_id, name, [], [], key_id, nonce)


def dial(plan: dict[str, Any]) -> Line:
    host, _, port = plan["at"].rpartition(":")
    return Line(socket.create_connection((host, int(port))))


def dial_in(plan: dict[str, Any]) -> list[Line]:
    """With no key, with the id of a key that it has not, and with frames before any proof."""
    lines: list[Line] = []
    broker = BrokerId(bytes.fromhex(plan.get("broker_id") or os.urandom(16).hex()))
    key_id = bytes.fromhex(plan["key_id"])
    for said in (
        [hello(plan, broker, b"", b"")],
        [hello(plan, broker, b"x" * 8, os.urandom(32))],
        [hello(plan, broker, key_id, os.urandom(32)), PeerProof(os.urandom(32), NAME, [], [])],
        [hello(plan, broker, key_id, os.urandom(32)), PeerProof(b"", NAME, [], [])],
        [hello(plan, broker, key_id, os.urandom(32)), Interest(1, "/*", None, 1, 1 << 40)],
        [Interest(1, "/*", None, 1, 1 << 40)],
        [hello(plan, broker, key_id, os.urandom(32))] * 2,
        [PeerProof(os.urandom(32), NAME, [], [])],
        [PeerChallenge(broker, os.urandom(32), os.urandom(32))],
        [PeerWelcome(broker, NAME, [], [], 1.0)],
    ):
        line = dial(plan)
        line.send(*said, greedy())
        line.listen(WAIT_S)
        lines.append(line)
    wrong = dial(plan)  # with a wrong key, and all else right
    nonce = os.urandom(32)
    wrong.send(hello(plan, broker, key_id, nonce))
    challenge = wrong.until(PeerChallenge)
    key = ClusterKey(b"w" * 32)
    transcript = Transcript(
        PROTOCOL_VERSION, plan["cluster_id"], broker, challenge.broker_id, nonce, challenge.nonce
    )
    wrong.send(PeerProof(transcript.prove(key, Side.DIALLER), NAME, [], []), greedy())
    wrong.listen(WAIT_S)
    # What it was shown itself, sent back.
    back = dial(plan)
    back.send(hello(plan, broker, key_id, os.urandom(32)))
    challenge = back.until(PeerChallenge)
    back.send(PeerProof(challenge.proof, NAME, [], []), greedy())
    back.listen(WAIT_S)
    return [*lines, wrong, back]


def be_dialled(plan: dict[str, Any]) -> list[Line]:
    """It listens at an address that a node was given as a seed."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(20)
    print(server.getsockname()[1], flush=True)
    lines: list[Line] = []
    broker = BrokerId(b"R" * 16)
    for answer in (
        [PeerWelcome(broker, NAME, [], [], 1.0), greedy()],
        [PeerChallenge(broker, os.urandom(32), os.urandom(32)), greedy()],
        [PeerChallenge(broker, b"", b"")],
        [greedy()],
    ):
        line = Line(server.accept()[0])
        line.until(PeerHello)
        line.send(*answer)
        line.listen(WAIT_S)
        lines.append(line)
    lines.append(_reflect(plan, server))
    return lines


def _reflect(plan: dict[str, Any], server: socket.socket) -> Line:
    """Have the node that dials us challenge and answer itself, and go on in its place."""
    near = Line(server.accept()[0])
    said = near.until(PeerHello)
    far = dial(plan)
    far.send(said)
    challenge = far.until(PeerChallenge)
    if challenge is not None:
        near.send(challenge)
        proof = near.until(PeerProof)
        if proof is not None:
            far.send(proof, greedy())
            far.listen(WAIT_S)
    near.heard += far.heard
    return near


if __name__ == "__main__":
    the_plan = json.loads(sys.argv[1])
    found = dial_in(the_plan) if the_plan["do"] == "dial" else be_dialled(the_plan)
    print(json.dumps([each.heard.hex() for each in found]), flush=True)
