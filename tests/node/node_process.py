"""A node in a process of its own, and commands that talk to it as a person runs them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

import trio

from busnode.client import connect

COMMAND = [sys.executable, "-c", "from busnode.node.cli import main; main()"]
PATIENCE_S = 60.0
"""For whatever must come in the end; a machine may be busy with other things."""

Status = dict[str, Any]


def environment(url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**kept, "BUSNODE_URL": url}


def wait_for(condition: Callable[[], bool]) -> None:
    give_up_at = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < give_up_at, "what was waited for did not come"
        sleep(0.01)


class NodeProcess:
    """A node in a process of its own, and commands that talk to it."""

    def __init__(self, data: Path, port: int = 0) -> None:
        self.data = data
        options = ["--cluster-id", "test", "--data", str(data), "--port", str(port)]
        self.process = subprocess.Popen(
            [*COMMAND, "start", "--json", "--http-port", "0", "--peer-port", "off", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.url = f"bus://{ready['client']}"
        self.port = int(ready["client"].rpartition(":")[2])

    def kill(self) -> None:
        """As a loss of power does it."""
        self.process.kill()
        self._gone()

    def stop(self) -> None:
        self.process.terminate()
        self._gone()

    def _gone(self) -> None:
        self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            env=environment(self.url),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def output(self, *arguments: str, stdin: str = "") -> str:
        ended = self.run(*arguments, stdin=stdin)
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout

    @contextmanager
    def running(self, *arguments: str) -> Iterator["Running"]:
        with ExitStack() as stack:
            command = subprocess.Popen(
                [*COMMAND, *arguments],
                env=environment(self.url),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(command)  # closes the pipes
            stack.callback(command.kill)
            yield Running(command)

    @contextmanager
    def subscriber(self, pattern: str, *options: str) -> Iterator["Running"]:
        """`busnode sub`, when the node knows of it."""
        with self.running("sub", pattern, *options) as command:
            wait_for(lambda: pattern in self.subscribed())
            yield command

    def status(self) -> Status:
        async def ask() -> Status:
            async with connect(self.url, deadline_s=PATIENCE_S) as bus:
                status: Status = json.loads((await bus.request("/$sys/status")).payload)
                return status

        return trio.run(ask)

    def subscribed(self) -> list[str]:
        clients = self.status()["clients"]
        return [each["pattern"] for client in clients for each in client["subscriptions"]]


class Running:
    """A command that has not ended yet."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin: IO[str] = process.stdin
        self.stdout: IO[str] = process.stdout
        self.stderr: IO[str] = process.stderr

    def feed(self, lines: range) -> None:
        self.stdin.write("".join(f"{number}\n" for number in lines))
        self.stdin.flush()

    def interrupt(self) -> tuple[int, str]:
        """Ctrl-C: exit code and what was said on stderr."""
        self.process.send_signal(signal.SIGINT)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        code = self.process.wait(PATIENCE_S)
        return code, self.stderr.read()
