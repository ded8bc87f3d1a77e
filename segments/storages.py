"""Finding a storage by its name: ours, or one that a user has installed."""
# ruff: noqa: PLC0415 - `importlib.metadata` reads all that is installed: 30 ms of every start

from busnode.segments.store import Storage
from busnode.wire.errors import StorageFailed

GROUP = "busnode.storage"


def storage_names() -> list[str]:
    from importlib.metadata import entry_points

    return sorted({entry.name for entry in entry_points(group=GROUP)})


def find_storage(name: str) -> Storage:
    """The storage of that name. Raises StorageFailed with the names that there are."""
    if name == "files":
        from busnode.segments.file_store import FileStore

        return FileStore
    if name == "memory":
        from busnode.segments.memory_store import MemoryStore

        return MemoryStore
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        if entry.name == name:
            storage: Storage = entry.load()
            return storage
    raise StorageFailed(
        f"there is no storage named {name!r}; installed are: {', '.join(storage_names())}"
    )
