"""docs/protocol.md says what the code does."""

import importlib.util
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

from busnode.wire.control import CONTROLS
from busnode.wire.frames import FrameType

from .wire.samples import OR_NIL, kinds_of
from .wire.test_frames import PUBLISHED, STAMPED

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "protocol"
DOCUMENT = ROOT / "docs" / "protocol.md"


@pytest.fixture(scope="module")
def script() -> Any:
    loader = SourceFileLoader("protocol_script", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    written = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # or scripts/ would get a __pycache__
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


@pytest.fixture
def text() -> str:
    return DOCUMENT.read_text("utf-8")


def test_the_tables_are_those_of_the_code(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--check"]) == 0, capsys.readouterr().out


def test_a_table_that_differs_is_shown_and_then_mended(
    script: Any, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "protocol.md"
    stale = text.replace("| 16 | `HELLO` |", "| 15 | `HELLO` |")
    assert stale != text
    document.write_text(stale, "utf-8")
    assert script.main(["--check"], document) == 1
    shown = capsys.readouterr()
    assert "-| 15 | `HELLO` |" in shown.out
    assert "+| 16 | `HELLO` |" in shown.out
    assert "run scripts/protocol" in shown.err
    assert document.read_text("utf-8") == stale
    assert script.main([], document) == 0
    assert document.read_text("utf-8") == text


def test_what_people_wrote_around_the_tables_stays(script: Any, text: str, tmp_path: Path) -> None:
    document = tmp_path / "protocol.md"
    document.write_text(text.replace("## Limits\n", "## Limits\n\nA new sentence.\n"), "utf-8")
    assert script.main([], document) == 0
    assert document.read_text("utf-8").count("A new sentence.") == 1


def test_a_document_that_has_lost_a_table_is_refused(
    script: Any, text: str, tmp_path: Path
) -> None:
    document = tmp_path / "protocol.md"
    document.write_text(text.replace("<!-- begin limits:", "<!-- limits:"), "utf-8")
    with pytest.raises(SystemExit, match="limits"):
        script.main([], document)


def test_an_argument_that_nobody_knows_is_refused(
    script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--chekc"]) == 2
    assert "scripts/protocol --check" in capsys.readouterr().err


def test_the_script_runs_by_itself() -> None:
    # -B for the same reason as above
    done = subprocess.run(
        [sys.executable, "-B", SCRIPT, "--check"],
        env={"PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_frame_type_has_a_row_and_every_field_is_explained(text: str) -> None:
    for kind in FrameType:
        assert f"| {kind.value} | `{kind.name}` |" in text
    _, _, kinds = text.partition("### Kinds of field")
    explained = set(re.findall(r"^\| (.+?) \|", kinds.partition("\n## ")[0], re.MULTILINE))
    used = {words.removesuffix(OR_NIL) for m in CONTROLS.values() for words in kinds_of(m).values()}
    assert explained - {"kind", "---"} == used


def test_the_example_is_the_pinned_frame(text: str) -> None:
    _, _, example = text.partition("<!-- begin example")
    rows = re.findall(r"^ *(\d*)  ([0-9a-f]+)  ", example.partition("<!-- end")[0], re.MULTILINE)
    published = bytes.fromhex("".join(row for at, row in rows if at))
    stamped = bytearray(published)
    at = 0
    for offset, row in rows:
        at = int(offset or at)
        stamped[at : at + len(row) // 2] = bytes.fromhex(row)
    assert published == PUBLISHED
    assert stamped == STAMPED


def test_every_link_inside_of_the_document_leads_somewhere(text: str) -> None:
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
    links = set(re.findall(r"\]\(#([^)]+)\)", text))
    assert links <= anchors
    assert len(links) >= 9
