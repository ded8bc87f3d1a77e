"""What a node asks of the world goes through `world`; only `world/real_*.py` touches the real one.

The check reads source. It knows imports and their aliases, but no types: a method of pathlib is
known by its name and by how many arguments it is given, which is why `files.rename(old, new)` of
the seam is fine and `path.rename(new)` is not.
"""

import ast
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "busnode"
REAL = "world/real_*.py"


class Permission(NamedTuple):
    """Lets the files that match reach one thing, by the name that the check gives it."""

    files: str
    name: str
    reason: str


# Each with a reason that a reader will accept. One that nothing uses any more fails the test.
PERMISSIONS: list[Permission] = [
    Permission(
        "testing/sim/entropy.py", "random", "the simulated entropy is a seeded random stream"
    ),
    Permission("node/bench_*.py", "mmap", "anonymous memory that begins at a page, and no file"),
    Permission(
        "node/connecting.py",
        "trio.lowlevel.wait_readable",
        "stdin of a command: no node has one, and Ctrl-C must be able to end the waiting",
    ),
    Permission(
        "node/connecting.py", "trio.lowlevel.wait_writable", "stdout of a command, likewise"
    ),
    Permission("node/cli_exec.py", "trio.run_process", "--exec runs what its user names"),
    *(
        Permission(
            "pipeline/java.py", name, "what Java there is, is asked of the machine: no node does"
        )
        for name in ("os.environ", "os.getpid", "os.chmod", "shutil", "subprocess", "Path.home")
    ),
    Permission("pipeline/session.py", "os.environ", "how Spark is told which Python to run"),
    Permission("pipeline/jvm_log.py", "os.environ", "how Spark is told what its JVM shall write"),
]

# What is out of bounds, with all that is below it, and the seam that stands in for it.
OUT_OF_BOUNDS: dict[str, str] = {
    name: seam
    for seam, names in {
        "world.clock": """
            time sched datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today
            datetime.date.today""",
        "world.entropy": "random uuid secrets",
        "world.network": """
            socket ssl socketserver select selectors asyncio http urllib.request
            trio.socket trio.open_tcp_stream trio.open_tcp_listeners trio.serve_tcp
            trio.open_ssl_over_tcp_stream trio.open_ssl_over_tcp_listeners trio.serve_ssl_over_tcp
            trio.open_unix_socket trio.SocketStream trio.SocketListener
            trio.lowlevel.wait_readable trio.lowlevel.wait_writable trio.lowlevel.FdStream
            anyio.connect_tcp anyio.connect_unix anyio.create_tcp_listener
            anyio.create_unix_listener anyio.create_udp_socket anyio.create_connected_udp_socket
            anyio.getaddrinfo anyio.wait_readable anyio.wait_writable""",
        "world.discovery": "zeroconf ifaddr",
        "world.files": """
            tempfile shutil glob fileinput mmap fcntl io.open io.open_code io.FileIO codecs.open
            trio.Path trio.open_file trio.wrap_file anyio.Path anyio.open_file anyio.wrap_file""",
        "a task in a nursery (threads live in the real files alone)": """
            threading _thread queue concurrent multiprocessing subprocess
            trio.to_thread trio.from_thread trio.run_process trio.lowlevel.open_process
            anyio.to_thread anyio.to_process anyio.run_process anyio.open_process""",
    }.items()
    for name in names.split()
}

# Of `os` and `os.path` nothing is in bounds but what looks at no more than its arguments.
PURE_OS = set("PathLike error fsdecode fsencode fspath linesep name path sep strerror".split())
PURE_OS_PATH = set(
    "basename commonpath commonprefix dirname isabs join normcase normpath split splitext".split()
)

# How many positional arguments each method of pathlib.Path takes that touches the disk.
PATH_METHODS: dict[str, int] = {
    **dict.fromkeys("exists expanduser is_dir is_file iterdir lstat mkdir".split(), 0),
    **dict.fromkeys("read_bytes read_text rmdir stat touch unlink".split(), 0),
    **dict.fromkeys("glob hardlink_to rename replace rglob symlink_to".split(), 1),
    **dict.fromkeys("write_bytes write_text".split(), 1),
}


class Use(NamedTuple):
    line: int
    name: str
    instead: str


class Reader(ast.NodeVisitor):
    """Reads one module and gathers each use of what is out of bounds."""

    def __init__(self) -> None:
        self.uses: list[Use] = []
        self.imported: dict[str, str] = {}
        """What a name in this module stands for: `dt` for `datetime.datetime`."""

    def visit_Module(self, node: ast.Module) -> None:
        # Imports first: a function may use what an import further down brings in.
        for child in ast.walk(node):
            match child:
                case ast.Import(names=names):
                    for alias in names:
                        top = alias.name.split(".")[0]
                        self.imported[alias.asname or top] = alias.name if alias.asname else top
                        self.check(child.lineno, alias.name)
                case ast.ImportFrom(module=str(origin), names=names, level=0):
                    for alias in names:
                        self.imported[alias.asname or alias.name] = f"{origin}.{alias.name}"
                        self.check(child.lineno, f"{origin}.{alias.name}")
                case ast.FunctionDef(name="open") if child in node.body:
                    self.imported["open"] = "a function of this module"
                case _:
                    pass
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        dotted = self.dotted(node)
        if dotted:
            self.check(node.lineno, dotted)
        else:
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id == "open" and "open" not in self.imported:
            self.found(node.lineno, "open", "world.files")

    def visit_Call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                self.check(node.lineno, name)
            case ast.Call(func=ast.Attribute(attr=method) as called) if not self.dotted(called):
                if is_path_method(method, node):
                    self.found(node.lineno, f"Path.{method}", "world.files")
            case _:
                pass
        self.generic_visit(node)

    def dotted(self, node: ast.expr) -> str | None:
        """The full name that an expression stands for, if it begins with something imported."""
        match node:
            case ast.Name(id=name):
                return self.imported.get(name)
            case ast.Attribute(value=value, attr=attr):
                before = self.dotted(value)
                return f"{before}.{attr}" if before else None
            case _:
                return None

    def check(self, line: int, dotted: str) -> None:
        parts = dotted.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name in OUT_OF_BOUNDS:
                self.found(line, name, OUT_OF_BOUNDS[name])
                return
        match parts:
            case ["os", "path", name, *_] | ["posixpath", name, *_]:
                if name not in PURE_OS_PATH:
                    self.found(line, f"os.path.{name}", "world.files")
            case ["os", name, *_] if name not in PURE_OS:
                self.found(line, f"os.{name}", "the world")
            case ["pathlib", "Path", ("cwd" | "home" | "open") as method, *_]:
                self.found(line, f"Path.{method}", "world.files")
            case ["pathlib", "Path", method, *_] if method in PATH_METHODS:
                self.found(line, f"Path.{method}", "world.files")
            case _:
                pass

    def found(self, line: int, name: str, instead: str) -> None:
        use = Use(line, name, instead)
        if use not in self.uses:
            self.uses.append(use)


def is_path_method(method: str, call: ast.Call) -> bool:
    """Whether a call has the shape of a pathlib method that touches the disk."""
    if method == "open":  # the seam has one too, but it is given a path, never a mode
        modes = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "mode")]
        return any(
            isinstance(mode, ast.Constant) and re.fullmatch("[rwxabt+]+", str(mode.value))
            for mode in modes
        ) or (
            not call.args and isinstance(call.func, ast.Attribute) and makes_path(call.func.value)
        )
    if method == "replace" and call.keywords:  # of a datetime
        return False
    return PATH_METHODS.get(method) == len(call.args)


def makes_path(value: ast.expr) -> bool:
    """Whether an expression is plainly a path: `Path(…)`, or something divided by a name."""
    match value:
        case ast.BinOp(op=ast.Div()):
            return True
        case ast.Call(func=ast.Name(id="Path") | ast.Attribute(attr="Path")):
            return True
        case _:
            return False


def reaches(source: str) -> list[Use]:
    """Each use in the source of what is out of bounds outside `world/real_*.py`."""
    reader = Reader()
    reader.visit(ast.parse(source))
    return reader.uses


def modules() -> list[str]:
    """The modules of the product that are not the real world, as `segments/log.py`."""
    folders = [folder for folder in PACKAGE.iterdir() if folder.is_dir()]
    found = [
        PACKAGE / "__init__.py",
        *(path for folder in folders for path in folder.rglob("*.py")),
    ]
    names = [path.relative_to(PACKAGE).as_posix() for path in found]
    return sorted(name for name in names if not fnmatch(name, REAL))


def permission(module: str, use: Use) -> Permission | None:
    for each in PERMISSIONS:
        if fnmatch(module, each.files) and each.name == use.name:
            return each
    return None


def test_the_world_is_reached_through_its_seams_alone() -> None:
    used: set[Permission] = set()
    wrong: list[str] = []
    for module in modules():
        for use in reaches((PACKAGE / module).read_text("utf-8")):
            given = permission(module, use)
            if given:
                used.add(given)
            else:
                wrong.append(f"{module}:{use.line} reaches {use.name}; use {use.instead}")
    assert not wrong, "\n".join(wrong)
    assert used == set(PERMISSIONS), "a permission that nothing uses any more goes"


def test_every_layer_is_looked_at() -> None:
    seen = {module.split("/")[0] for module in modules()}
    assert {"__init__.py", "wire", "world", "segments", "cluster", "replication", "node"} <= seen


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import time", "time"),
        ("from time import monotonic", "time"),
        ("def later():\n    import time", "time"),
        ("import importlib\nimportlib.import_module('time')", "time"),
        ("__import__('socket')", "socket"),
        ("import random as dice", "random"),
        ("from random import Random", "random"),
        ("from uuid import uuid4", "uuid"),
        ("import secrets", "secrets"),
        ("import socket", "socket"),
        ("import ssl", "ssl"),
        ("import threading", "threading"),
        ("import concurrent.futures", "concurrent"),
        ("import subprocess", "subprocess"),
        ("import tempfile", "tempfile"),
        ("import shutil", "shutil"),
        ("import asyncio.subprocess", "asyncio"),
        ("import zeroconf", "zeroconf"),
        ("import datetime\nstamp = datetime.datetime.now()", "datetime.datetime.now"),
        ("import datetime as dt\nstamp = dt.datetime.utcnow()", "datetime.datetime.utcnow"),
        ("from datetime import datetime\nclock = datetime.now", "datetime.datetime.now"),
        ("from datetime import datetime as when\nwhen.today()", "datetime.datetime.today"),
        ("from datetime import date\ndate.today()", "datetime.date.today"),
        *(
            (f"import os\nos.{name}(x)", f"os.{name}")
            for name in (
                "open write fsync fdatasync rename replace remove unlink listdir scandir urandom"
                " sendfile stat fstat mkdir makedirs truncate pread getpid environ"
            ).split()
        ),
        ("import os as system\nsystem.rename(a, b)", "os.rename"),
        ("from os import replace", "os.replace"),
        ("from os import *", "os.*"),
        ("import os\nos.path.exists(x)", "os.path.exists"),
        ("import os.path\nos.path.getsize(x)", "os.path.getsize"),
        ("from os import path\npath.isfile(x)", "os.path.isfile"),
        ("import posixpath\nposixpath.exists(x)", "os.path.exists"),
        ("def early():\n    os.fsync(3)\nimport os", "os.fsync"),
        ("with open(x) as file: pass", "open"),
        ("reader = open", "open"),
        ("class Log:\n    def open(self): return open(self.path)", "open"),
        ("import io\nio.open(x)", "io.open"),
        *((f"path.{name}()", f"Path.{name}") for name, count in PATH_METHODS.items() if not count),
        *((f"path.{name}(x)", f"Path.{name}") for name, count in PATH_METHODS.items() if count),
        ("path.mkdir(parents=True, exist_ok=True)", "Path.mkdir"),
        ("(root / 'x').read_text(encoding='utf-8')", "Path.read_text"),
        ("path.open('rb')", "Path.open"),
        ("path.open(mode='w')", "Path.open"),
        ("(root / 'x').open()", "Path.open"),
        ("from pathlib import Path\nPath('x').open()", "Path.open"),
        ("from pathlib import Path\nread = Path.read_bytes", "Path.read_bytes"),
        ("import pathlib\nroot = pathlib.Path.cwd()", "Path.cwd"),
        ("from trio import socket", "trio.socket"),
        ("import trio\ntrio.socket.socket()", "trio.socket"),
        ("import trio\nasync def f(): await trio.open_tcp_stream(h, p)", "trio.open_tcp_stream"),
        ("import trio\ntrio.open_tcp_listeners(0)", "trio.open_tcp_listeners"),
        ("import trio\nrun = trio.to_thread.run_sync", "trio.to_thread"),
        ("from trio.to_thread import run_sync", "trio.to_thread"),
        ("import trio\ntrio.Path('x')", "trio.Path"),
        ("import trio\ntrio.open_file('x')", "trio.open_file"),
        ("import anyio\nanyio.connect_tcp(h, p)", "anyio.connect_tcp"),
    ],
)
def test_a_way_around_the_seams_is_found(source: str, name: str) -> None:
    assert {use.name for use in reaches(source)} == {name}


@pytest.mark.parametrize(
    "source",
    [
        "import struct, io, os\nbuffer = io.BytesIO()",
        "import os\nfull = os.path.join(a, os.fspath(b))",
        "import posixpath\nposixpath.dirname(x)",
        "from datetime import UTC, datetime\ndatetime.fromtimestamp(0, UTC).replace(tzinfo=None)",
        "from dataclasses import replace\nreplace(value, x=1)",
        "import dataclasses\ndataclasses.replace(value)",
        "text.replace('a', 'b')",
        "files.open(path)\nfiles.exists(path)\nfiles.rename(old, new)\nfiles.remove(path)",
        "breaker.open()",
        "def open(x): ...\nopen(1)",
        "from busnode.segments.log import open\nopen(1)",
        "class Log:\n    def open(self): ...\n\nLog().open()",
        "import trio\nasync def f():\n    async with trio.open_nursery(): await trio.sleep(1)",
        "from busnode.world.clock import Clock\nfrom busnode.wire import random_walk",
        "from pathlib import Path, PurePath\nPath('a').with_suffix('.b') / 'c'",
        "self.time.monotonic()\nworld.random()",
    ],
)
def test_what_touches_nothing_is_fine(source: str) -> None:
    assert reaches(source) == []


def test_a_permission_is_for_its_files_and_its_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Permission("node/bench*.py", "open", "it writes its result")
    monkeypatch.setattr(f"{__name__}.PERMISSIONS", [given])
    assert permission("node/bench_publish.py", Use(1, "open", "")) is given
    assert permission("node/bench_publish.py", Use(1, "time", "")) is None
    assert permission("node/router.py", Use(1, "open", "")) is None
