"""Hosts on a network of their own: a network namespace each, and a bridge between them.

All of it needs iproute2, nftables and the rights of root, and nothing of it is seen outside: the
addresses, the bridge and the rules of nft are in namespaces that are made here and removed again.
"""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

BUSNODE = [sys.executable, "-c", "from busnode.node.cli import main; main()"]
PATIENCE_S = 60.0
"""For whatever must come in the end; a machine may be busy with other things."""

PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
"""Where ip and nft are; a user's own path often lacks the last two."""

NAMESPACES = Path("/run/netns")
OURS = re.compile(r"busnode-(\d+)-\d+-\w+")
"""The process that made it, the how-manyth network of that process, and the host."""

CUT = "busnode_cut"
CLONE_NEWNET = 0x40000000

_networks = count(1)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    give_up_at = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < give_up_at, f"{what}: it did not come to that"
        sleep(0.02)


# What it takes ------------------------------------------------------------------------------------


def cannot_be() -> str | None:
    """Why there can be no such hosts on this machine, and what would help; None if there can."""
    absent = [tool for tool in ("ip", "nft") if shutil.which(tool, path=PATH) is None]
    if absent:
        return (
            f"there are no network namespaces without {' and '.join(absent)}: as root, run "
            "apt-get install iproute2 nftables"
        )
    try:
        with Hosts("probe") as hosts:
            hosts.partition(*hosts.all, *hosts.all)
    except CannotRun as error:
        return (
            f"this machine allows no network namespaces with a bridge and nft ({error}): run it as "
            "root, with CAP_NET_ADMIN and CAP_SYS_ADMIN"
        )
    return None


class CannotRun(Exception):
    """A command of the system refused."""


def run(*command: str, stdin: str = "") -> str:
    ended = subprocess.run(
        command,
        input=stdin,
        env={**os.environ, "PATH": PATH},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if ended.returncode:
        said = ended.stderr.strip().partition("\n")[0]
        raise CannotRun(f"{' '.join(command)}: {said or ended.returncode}")
    return ended.stdout


# The network --------------------------------------------------------------------------------------


class Hosts:
    """Some hosts and the bridge that joins them, for as long as the context lasts.

    Raises CannotRun where the system does not allow it.
    """

    def __init__(self, *names: str) -> None:
        remove_leftovers()
        self._prefix = f"busnode-{os.getpid()}-{next(_networks)}"
        self._bridge = f"{self._prefix}-bridge"
        self._stack = ExitStack()
        self._is_cut = False
        self.all = [
            Host(name, f"{self._prefix}-{name}", f"10.77.0.{number}")
            for number, name in enumerate(names, 1)
        ]

    def __enter__(self) -> "Hosts":
        with ExitStack() as stack:  # what was made so far goes, should the next step fail
            self._add_namespace(stack, self._bridge)
            inside = ("ip", "-n", self._bridge, "link")
            # With snooping, a bridge passes multicast only to whom it has heard join.
            run(*inside, "add", "bus", "type", "bridge", "mcast_snooping", "0")
            run(*inside, "set", "bus", "up")
            for host in self.all:
                self._add_namespace(stack, host.namespace)
                peer = ("peer", "name", "eth0", "netns", host.namespace)
                run(*inside, "add", host.name, "type", "veth", *peer)
                run(*inside, "set", host.name, "master", "bus", "up")
                own = ("ip", "-n", host.namespace)
                run(*own, "link", "set", "lo", "up")
                run(*own, "address", "add", f"{host.address}/24", "dev", "eth0")
                run(*own, "link", "set", "eth0", "up")
                run(*own, "route", "add", "default", "dev", "eth0")
                stack.enter_context(host)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def partition(self, host: "Host", *others: "Host") -> None:
        """From now on nothing passes between a host and these others, multicast included."""
        rules = [
            f"iifname {one.name} oifname {other.name} drop"
            for pair in ((host, other) for other in others)
            for one, other in (pair, pair[::-1])
        ]
        chain = "; ".join(["type filter hook forward priority 0", "policy accept", *rules])
        self._nft(f"table bridge {CUT} {{ chain cut {{ {chain}; }}; }}")
        self._is_cut = True

    def heal(self) -> None:
        assert self._is_cut
        self._nft(f"delete table bridge {CUT}")
        self._is_cut = False

    def show_logs(self) -> None:
        for log in (log for host in self.all for log in host.logs):
            print(f"\n{log.name}\n{log.read_text()}")

    def _nft(self, rules: str) -> None:
        run("ip", "netns", "exec", self._bridge, "nft", "-f", "-", stdin=rules)

    def _add_namespace(self, stack: ExitStack, name: str) -> None:
        run("ip", "netns", "add", name)
        stack.callback(remove, name)


def remove_leftovers() -> None:
    """Remove what a run that was killed has left behind."""
    if not NAMESPACES.is_dir():
        return
    for namespace in NAMESPACES.iterdir():
        ours = OURS.fullmatch(namespace.name)
        if ours is not None and not Path(f"/proc/{ours[1]}").exists():
            with suppress(CannotRun):  # another run is just doing the same, or it is not for us
                remove(namespace.name)


def remove(namespace: str) -> None:
    for pid in run("ip", "netns", "pids", namespace).split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    run("ip", "netns", "delete", namespace)


# A host -------------------------------------------------------------------------------------------


class Host:
    """One host, its processes, and an eye inside."""

    def __init__(self, name: str, namespace: str, address: str) -> None:
        self.name = name
        self.namespace = namespace
        self.address = address
        self._stack = ExitStack()
        self.logs: list[Path] = []
        """Of its nodes."""
        # A thread that is inside, so that asking for a status costs no process.
        self._inside = ThreadPoolExecutor(1, f"inside {name}", self._go_inside)

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        self._inside.shutdown()
        self._stack.close()

    def _go_inside(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with (NAMESPACES / self.namespace).open() as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns to {self.namespace}")

    def popen(
        self, arguments: Sequence[str], port: int, stderr: int | IO[str]
    ) -> "subprocess.Popen[str]":
        """`busnode` in this host, with the node at a port; it ends with the host at the latest."""
        around = {k: v for k, v in os.environ.items() if not k.startswith("BUSNODE_")}
        around |= {"PATH": PATH, "BUSNODE_URL": f"bus://{self.address}:{port}"}
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *BUSNODE, *arguments],
            env=around,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        self._stack.enter_context(process)  # closes its pipes
        self._stack.callback(process.kill)
        return process

    def http(self, port: int, path: str) -> Any:
        """What a node answers, asked from inside this host."""

        def ask() -> Any:
            connection = HTTPConnection(self.address, port, timeout=PATIENCE_S)
            try:
                connection.request("GET", path)
                return json.load(connection.getresponse())
            finally:
                connection.close()

        return self._inside.submit(ask).result(PATIENCE_S)
