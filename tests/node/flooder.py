"""Floods a node's listeners from a process of its own: connections that never greet, and garbage.

It is told on its standard input what to do, a JSON object a line, and answers each with one: first
how many of each kind there are to be, then anything, upon which it closes all.
A connection that the node ends is made again after a
while, so that there are always about as many as were asked for. Addresses are loopback ones only.
"""

import errno
import json
import os
import resource
import select
import socket
import sys
import time
from collections import deque
from random import Random
from typing import Any, Final

from .hostile_frames import CLIENTS, DOORS, Hostile

AGAIN_S: Final = 1.0
"""How soon somebody who was turned away comes again."""

DRIP_S: Final = 1.0
CONNECTS_A_TURN: Final = 50


class Attacker:
    """One connection after another to one listener."""

    __slots__ = ("door", "drips", "garbage", "socket", "unsent")

    def __init__(self, door: str, garbage: bool, drips: bool) -> None:
        self.door = door
        self.garbage = garbage
        self.drips = drips
        self.socket: socket.socket | None = None
        self.unsent = b""


class Flood:
    def __init__(self, addresses: dict[str, tuple[str, int]], order: dict[str, Any]) -> None:
        chance = Random(order["seed"])
        self._addresses = addresses
        self._chance = chance
        self._garbage = [
            Hostile(Random(f"{order['seed']}/{n}"), CLIENTS, []).broken() for n in range(500)
        ]
        self._waiting: deque[tuple[float, Attacker]] = deque()
        self._poll = select.epoll()
        self._here: dict[int, Attacker] = {}
        self.counts = {"connected": 0, "ended": 0, "sent": 0, "open": 0}
        self._drip_at = 0.0
        for number in range(order["half_open"]):
            door = DOORS[number % 2]
            self._waiting.append((0.0, Attacker(door, False, number % 4 >= 2)))
        for number in range(order["garbage"]):
            self._waiting.append((0.0, Attacker(DOORS[number % 2], True, False)))

    def turn(self) -> None:
        now = time.monotonic()
        for _ in range(CONNECTS_A_TURN):
            if not self._waiting or self._waiting[0][0] > now:
                break
            self._connect(self._waiting.popleft()[1])
        if now >= self._drip_at:
            self._drip_at = now + DRIP_S
            for attacker in list(self._here.values()):
                if attacker.drips:
                    self._send(attacker, b"\0")
        for fd, events in self._poll.poll(0.01):
            heard = self._here.get(fd)
            if heard is None:
                continue
            if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self._hear(heard)
            elif events & select.EPOLLOUT:
                self._connected(heard)

    def _connect(self, attacker: Attacker) -> None:
        attacker.socket = made = socket.socket()
        made.setblocking(False)
        code = made.connect_ex(self._addresses[attacker.door])
        if code not in (0, errno.EINPROGRESS):
            self._ended(attacker)
            return
        self._here[made.fileno()] = attacker
        wanted = select.EPOLLIN | (select.EPOLLOUT if attacker.garbage else 0)
        self._poll.register(made, wanted)
        self.counts["connected"] += 1

    def _connected(self, attacker: Attacker) -> None:
        assert attacker.socket is not None
        self._poll.modify(attacker.socket, select.EPOLLIN)
        self._send(attacker, self._chance.choice(self._garbage))

    def _send(self, attacker: Attacker, data: bytes) -> None:
        assert attacker.socket is not None
        try:
            self.counts["sent"] += attacker.socket.send(data)
        except BlockingIOError:
            pass
        except OSError:
            self._ended(attacker)

    def _hear(self, attacker: Attacker) -> None:
        assert attacker.socket is not None
        try:
            if attacker.socket.recv(65536) and not attacker.garbage:
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._ended(attacker)

    def _ended(self, attacker: Attacker) -> None:
        assert attacker.socket is not None
        self.counts["ended"] += 1
        self._here.pop(attacker.socket.fileno(), None)
        attacker.socket.close()
        attacker.socket = None
        self._waiting.append((time.monotonic() + AGAIN_S, attacker))

    def stop(self) -> dict[str, int]:
        self.counts["open"] = len(self._here)
        for attacker in self._here.values():
            assert attacker.socket is not None
            attacker.socket.close()
        self._poll.close()
        return self.counts


def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    addresses = {
        door: (host, int(port))
        for door, text in zip(DOORS, sys.argv[1:], strict=True)
        for host, _, port in [text.rpartition(":")]
    }
    assert all(host.startswith("127.") for host, _ in addresses.values())
    # Attackers have machines of their own: what they compute must not be taken from the node's.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.set_blocking(0, False)
    flood: Flood | None = None
    while True:
        if flood is None:
            select.select([0], [], [])
        line = sys.stdin.readline()
        if line:
            order = json.loads(line)
            if flood is not None:
                answer: object = flood.stop()
                flood = None
            else:
                answer = "flooding"
                flood = Flood(addresses, order)
            print(json.dumps(answer), flush=True)
        elif line == "" and flood is None:
            return
        if flood is not None:
            flood.turn()


if __name__ == "__main__":
    main()
