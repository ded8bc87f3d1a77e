"""The contract of `Store`, for each of the storages that come with busnode."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from busnode.segments.file_store import FileStore
from busnode.segments.memory_store import MemoryStore
from busnode.testing.sim import SimDisk
from busnode.world.real_files import RealFiles

from .samples import DIRECTORY
from .store_contract import Opener, StoreContract


class TestFilesOnTheRealDisk(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Iterator[Opener]:
        opener = Opener(
            lambda clock, options: FileStore(RealFiles(), clock, str(tmp_path), options)
        )
        yield opener
        opener.close()


class TestFilesOnASimulatedDisk(StoreContract):
    @pytest.fixture
    def opener(self) -> Iterator[Opener]:
        disk = SimDisk()
        opener = Opener(lambda clock, options: FileStore(disk, clock, DIRECTORY, options))
        yield opener
        opener.close()


class TestMemory(StoreContract):
    outlives = False

    @pytest.fixture
    def opener(self) -> Iterator[Opener]:
        disk = SimDisk()
        opener = Opener(lambda clock, options: MemoryStore(disk, clock, DIRECTORY, options))
        yield opener
        opener.close()
