"""Imports point one way, and each layer is installed below `busnode` and nowhere else."""

import ast
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINKS = ROOT / "src" / "busnode"

COPIES = {"wire", "world", "segments", "cluster", "replication"}
MAY_IMPORT: dict[str, set[str]] = {
    "wire": set(),
    "world": {"wire"},
    "segments": {"wire", "world"},
    "cluster": {"wire", "world", "segments"},
    "replication": {"wire", "world", "segments"},
    "tasks": {"wire"},
    "security": {"wire"},
    "node": COPIES | {"tasks", "security"},
    "client": {"wire", "world"},
    "outbox": {"wire", "client"},
    "gateways": {"wire", "client"},
    "pipeline": {"wire", "segments", "world", "client"},
}
MAY_IMPORT_ANYTHING = {
    "testing/*": "it stands beside the product and drives all of it",
    "node/cli*": "the commands are the outermost ring: a node, a client and the simulator in turn",
    "node/bench*": "as the commands, of which it is one",
}
LAYERS = {*MAY_IMPORT, "testing"}

NOT_LAYERS = {"benchmarks", "build", "dist", "docs", "examples", "scripts", "src", "tests"}


def layer_folders(root: Path) -> list[str]:
    """The folders at the top of the repository that hold code of the product."""
    return sorted(
        folder.name
        for folder in root.iterdir()
        if folder.is_dir()
        and not folder.name.startswith(".")
        and folder.name not in NOT_LAYERS
        and any(folder.glob("*.py"))
    )


def layer_modules(root: Path) -> list[str]:
    """The modules of all layers, as `segments/log.py`."""
    return sorted(
        module.relative_to(root).as_posix()
        for folder in layer_folders(root)
        for module in (root / folder).rglob("*.py")
    )


def imported_names(module: str, source: str) -> Iterator[tuple[int, str]]:
    """Each import in the source, wherever it stands: its line and the full dotted name."""
    package = ["busnode", *Path(module).parent.parts]
    for node in ast.walk(ast.parse(source, module)):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=origin, names=names, level=level):
                base = package[: len(package) - level + 1] if level else []
                parts = [*base, *(origin.split(".") if origin else [])]
                for alias in names:
                    yield node.lineno, ".".join([*parts, alias.name])
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


def against_direction(module: str, source: str) -> list[str]:
    """What is wrong with the imports of one module, a sentence for each."""
    own = module.split("/", 1)[0]
    free = any(fnmatch(module, pattern) for pattern in MAY_IMPORT_ANYTHING)
    allowed = MAY_IMPORT.get(own, set()) | {own}
    wrong: list[str] = []
    for line, name in imported_names(module, source):
        match name.split("."):
            case [first, *_] if first in LAYERS:
                wrong.append(f"{module}:{line} imports {name}; its name is busnode.{name}")
            case ["busnode", second, *_] if second in LAYERS:
                if not free and second not in allowed:
                    wrong.append(f"{module}:{line} imports {name}; {own} stands below {second}")
            case ["busnode", "__version__"]:
                pass
            case ["busnode", *_] if not free:
                wrong.append(f"{module}:{line} imports {name}, and with it every layer")
            case _:
                pass
    return wrong


def test_imports_point_one_way() -> None:
    modules = layer_modules(ROOT)
    assert modules
    wrong = [
        sentence
        for module in modules
        for sentence in against_direction(module, (ROOT / module).read_text("utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("wire/frames.py", "import busnode.segments.log"),
        ("wire/frames.py", "from busnode.world import clock"),
        ("wire/frames.py", "from busnode import world"),
        ("wire/frames.py", "from ..segments import log"),
        ("wire/frames.py", "from .. import segments"),
        ("wire/deep/frames.py", "from ...node.router import Router"),
        ("wire/__init__.py", "from ..segments import log"),
        ("wire/frames.py", "def later():\n    from busnode.node import cli"),
        ("wire/frames.py", "if TYPE_CHECKING:\n    from busnode.node import cli"),
        ("wire/frames.py", "import importlib\nimportlib.import_module('busnode.segments')"),
        (
            "wire/frames.py",
            "from importlib import import_module\nimport_module('busnode.segments')",
        ),
        ("wire/frames.py", "__import__('busnode.segments')"),
        ("wire/frames.py", "import busnode"),
        ("wire/frames.py", "from busnode import connect"),
        ("world/clock.py", "import busnode.segments"),
        ("world/real_clock.py", "import busnode.testing.simulated"),
        ("segments/log.py", "import busnode.cluster"),
        ("segments/log.py", "import wire.frames"),
        ("segments/log.py", "from wire import frames"),
        ("cluster/links.py", "import busnode.replication"),
        ("replication/mirror.py", "import busnode.cluster"),
        ("replication/mirror.py", "import busnode.tasks"),
        ("tasks/lease.py", "import busnode.node"),
        ("tasks/lease.py", "import busnode.segments"),
        ("security/rules.py", "import busnode.world"),
        ("node/router.py", "import busnode.client"),
        ("node/router.py", "import busnode.testing"),
        ("client/session.py", "import busnode.segments"),
        ("client/session.py", "import busnode.node"),
        ("outbox/relay.py", "import busnode.segments"),
        ("gateways/mqtt.py", "import busnode.node"),
        ("pipeline/source.py", "import busnode.cluster"),
        ("testing/cluster.py", "import node.router"),
    ],
)
def test_an_import_against_the_direction_is_found(module: str, source: str) -> None:
    assert len(against_direction(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "wire/frames.py",
            "import struct\nfrom busnode.wire.ids import BrokerId\nfrom . import ids",
        ),
        ("wire/frames.py", "import busnode_contrib, wireless"),
        ("wire/deep/frames.py", "from ..ids import BrokerId"),
        ("segments/log.py", "from busnode.world.files import Files\nfrom ..wire import ids"),
        ("tasks/lease.py", "from busnode.wire.ids import BrokerId\nimport busnode.wire.errors"),
        ("node/router.py", "import busnode.tasks\nfrom busnode import __version__"),
        ("node/cli.py", "import busnode\nimport busnode.client\nimport busnode.testing"),
        ("node/cli/sim.py", "import busnode.testing"),
        ("node/bench_publish.py", "import busnode.client"),
        ("client/session.py", "import busnode.wire\nimport busnode.world"),
        ("pipeline/source.py", "import busnode.segments\nimport busnode.client"),
        ("testing/cluster.py", "from busnode import connect\nimport busnode.node"),
    ],
)
def test_an_import_in_the_direction_is_fine(module: str, source: str) -> None:
    assert against_direction(module, source) == []


def test_every_layer_has_its_place_in_the_order() -> None:
    assert set(layer_folders(ROOT)) <= LAYERS, "give the new folder a row in MAY_IMPORT"


def test_every_layer_has_a_relative_link_and_no_link_is_broken() -> None:
    links = {link.name: link.readlink().as_posix() for link in LINKS.iterdir() if link.is_symlink()}
    assert links == {folder: f"../../{folder}" for folder in layer_folders(ROOT)}
    assert [name for name in links if not (LINKS / name / "__init__.py").is_file()] == []


def test_pyright_is_given_every_link_by_name() -> None:
    included = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pyright"][
        "include"
    ]
    assert {f"src/busnode/{folder}" for folder in layer_folders(ROOT)} <= set(included)


def test_the_wheel_holds_every_module_below_busnode_and_nothing_else(tmp_path: Path) -> None:
    # A copy, so that neither an older build/ nor a second run of the tests gets into the wheel.
    tree = tmp_path / "tree"
    for name in ["src", *layer_folders(ROOT)]:
        unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=unwanted)
    for name in ["pyproject.toml", "LICENSE", "README.md"]:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tree)

    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q"]
    command = [sys.executable, "-m", "pip", "wheel", ".", *options, "-w", str(tmp_path)]
    built = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr

    (wheel,) = tmp_path.glob("busnode-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in held if ".dist-info/" not in name}
    assert tops == {"busnode", "pyspark_busnode"}  # the latter so that Spark finds the format
    assert {name.split("-")[0] for name in held if ".dist-info/" in name} == {"busnode"}
    modules = {f"busnode/{module}" for module in layer_modules(tree)}
    assert modules | {"busnode/__init__.py", "busnode/py.typed"} <= held
