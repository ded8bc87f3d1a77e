"""The command `scripts/chaos`: a real cluster in trouble for minutes, and what came of it."""

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

import trio

from .message_chaos import message_chaos
from .task_chaos import task_chaos
from .trouble import Kinds


class Judged(Protocol):
    """What came of it; empty lists are good."""

    lost: list[str]
    wrong: list[str]


CHAOS: Final[dict[str, Callable[..., Awaitable[Judged]]]] = {
    "messages": message_chaos,
    "tasks": task_chaos,
}


def main() -> None:
    words = argparse.ArgumentParser("scripts/chaos", description=__doc__)
    words.add_argument("what", nargs="?", choices=list(CHAOS), default="messages")
    words.add_argument("--minutes", type=float, default=1.0, help="how long there is trouble")
    words.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    words.add_argument("--nodes", type=int, default=3)
    words.add_argument("--pairs", type=int, default=0, help="per cent that kill two nodes at once")
    words.add_argument("--pauses", type=int, default=0, help="per cent that stop one for a while")
    words.add_argument("--keep", type=Path, help="a folder for logs and data that stay")
    given = words.parse_args()
    if given.nodes < 2:
        words.error("--nodes: a mirror takes 2 nodes at least")
    logging.getLogger("busnode").setLevel(logging.ERROR)  # what clients go through is counted
    print(f"seed {given.seed}, {given.nodes} nodes", flush=True)
    with tempfile.TemporaryDirectory(prefix="busnode-chaos-") as folder:

        def progress(line: str) -> None:
            print(line, flush=True)

        kinds = Kinds(given.pairs, given.pauses)
        work = given.minutes * 60, given.seed, given.nodes, kinds, progress
        tally = trio.run(CHAOS[given.what], given.keep or Path(folder), *work)
    print(f"in all: {tally}")
    for sentence in [*tally.lost[:20], *tally.wrong[:20]]:
        print(sentence)
    if tally.lost or tally.wrong:
        print(f"FAILED; to repeat: scripts/chaos {' '.join(sys.argv[1:])} --seed {given.seed}")
        sys.exit(1)


if __name__ == "__main__":
    main()
