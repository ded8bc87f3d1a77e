"""Which Java is taken, and how the packaged one is started."""

import os
import subprocess
from pathlib import Path

import pytest

from busnode.pipeline import java
from busnode.pipeline.java import java_version, packaged_java, parse_version, use_java
from busnode.wire.errors import Refused
from busnode.world.real_files import RealFiles


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_402"', 8),
        ("no java here", None),
    ],
)
def test_a_version_is_read(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def fake_java(folder: Path, version: str) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return folder


def test_the_machine_s_own_is_taken_where_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "home", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert use_java() == str(home)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert use_java() == ""


def test_the_packaged_one_is_taken_where_there_is_none_or_an_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.1")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = use_java()
    assert os.environ["JAVA_HOME"] == home == str(tmp_path / "busnode" / "java")
    assert use_java() == home  # it is one now
    version = java_version(f"{home}/bin/java")
    assert version is not None
    assert version >= 17


def test_its_launcher_drops_the_flag_that_it_does_not_know_and_no_other(tmp_path: Path) -> None:
    home = java.write_launcher(RealFiles(), "/bin/echo", str(tmp_path / "home"))
    flags = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$HOME", "--add-opens=x"]
    told = subprocess.run([f"{home}/bin/java", *flags], capture_output=True, text=True, check=True)
    assert told.stdout == "-Xmx1g a b  $HOME --add-opens=x\n"


def test_no_java_at_all_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "packaged_java", lambda: None)
    with pytest.raises(Refused, match="no Java of version 17 or newer"):
        use_java()


def test_the_package_has_a_java() -> None:
    assert packaged_java() is not None
