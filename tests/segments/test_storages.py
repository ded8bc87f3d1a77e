"""Storages are found by name: ours, and one that a user has installed."""

import importlib.metadata
from pathlib import Path

import pytest

from busnode.segments.file_store import FileStore
from busnode.segments.memory_store import MemoryStore
from busnode.segments.storages import GROUP, find_storage, storage_names
from busnode.segments.store import Storage, Store, StoreOptions
from busnode.testing.sim import SimDisk
from busnode.wire.errors import StorageFailed

from .samples import BROKER, DIRECTORY, TEMPERATURE, StoppedClock, write_numbered


def open_named(name: str) -> Store:
    return find_storage(name)(SimDisk(), StoppedClock(), DIRECTORY, StoreOptions())


@pytest.mark.parametrize(("name", "kind"), [("files", FileStore), ("memory", MemoryStore)])
async def test_ours_are_found_by_name(name: str, kind: Storage) -> None:
    assert find_storage(name) is kind
    store = open_named(name)
    store.begin(BROKER)
    write_numbered(store.create(TEMPERATURE), 2)
    assert [log.committed_no for log in (await store.commit()).logs] == [2]
    store.close()


def test_ours_are_declared_as_anybodys_are() -> None:
    try:
        importlib.metadata.distribution("busnode")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("busnode is not installed here, only on the path")
    declared = {entry.name: entry.load() for entry in importlib.metadata.entry_points(group=GROUP)}
    assert declared["files"] is FileStore
    assert declared["memory"] is MemoryStore
    assert {"files", "memory"} <= set(storage_names())


def test_an_unknown_name_is_refused_with_the_names_that_there_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(tmp_path, monkeypatch)
    with pytest.raises(StorageFailed) as caught:
        find_storage("flies")
    assert "'flies'" in caught.value.text
    assert "their-own" in caught.value.text


def test_a_users_own_storage_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(tmp_path, monkeypatch)
    assert "their-own" in storage_names()
    store = open_named("their-own")
    assert type(store).__name__ == "TheirStore"
    assert isinstance(store, MemoryStore)


def install(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package as pip leaves it, with an entry point of its own."""
    info = site / "their_storage-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-storage\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\ntheir-own = their_storage:TheirStore\n")
    (site / "their_storage.py").write_text(
        "from busnode.segments.memory_store import MemoryStore\n"
        "class TheirStore(MemoryStore):\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(site)
