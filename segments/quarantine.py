"""Damaged bytes that a mended segment has no more: kept for people, as long as its segment is.

    DIRECTORY/quarantine/<brokerId>/<log number>-<first msgNo of the segment>-<first msgNo>.bad

Names are numbers. What is damaged again in the same place takes the place of what was there.
"""

import posixpath
from contextlib import suppress
from typing import Final

from busnode.segments.bucket import make_durable_directory
from busnode.segments.damage import Hole
from busnode.segments.segment import Segment
from busnode.segments.steps import Fetch, Steps, Sync
from busnode.segments.survey import Window
from busnode.world.files import Files, ReadFile

QUARANTINE: Final = "quarantine"
STEP_BYTES: Final = 1024 * 1024


def _folder(segment_path: str) -> str:
    bucket = posixpath.dirname(segment_path)
    data = posixpath.dirname(posixpath.dirname(bucket))
    return f"{data}/{QUARANTINE}/{posixpath.basename(bucket)}"


def _stem(segment_path: str) -> str:
    return posixpath.basename(segment_path).removesuffix(".seg")


def quarantine(files: Files, segment: Segment, file: ReadFile, hole: Hole) -> Steps[str | None]:
    """Keep the bytes of a hole; where, or None if there are none. Durable when it returns."""
    end = min(hole.end, file.size_bytes())
    if hole.offset >= end:
        return None
    folder = _folder(segment.path)
    make_durable_directory(files, folder)
    path = f"{folder}/{_stem(segment.path)}-{hole.first_no:020d}.bad"
    scratch = path + ".new"
    if files.exists(scratch):
        files.remove(scratch)
    window = Window(file, end, STEP_BYTES, tolerant=True)
    kept = files.append_to(scratch)
    try:
        for at in range(hole.offset, end, STEP_BYTES):
            yield Fetch(file, at, min(STEP_BYTES, end - at))
            window.load(at, STEP_BYTES)
            kept.append(window.view[: window.filled])
        yield Sync(kept)
    finally:
        kept.close()
    files.rename(scratch, path)
    yield Sync(None, folder)
    return path


def release(files: Files, segment_path: str) -> None:
    """A segment has expired, and with it what was damaged in it."""
    folder = _folder(segment_path)
    if not files.exists(folder):
        return
    for name in files.names(folder):
        if name.startswith(f"{_stem(segment_path)}-"):
            with suppress(FileNotFoundError):
                files.remove(f"{folder}/{name}")
