"""Who a node is: a name that stays with its data directory."""

import json
from typing import Final

from busnode.wire import limits
from busnode.world.files import Files, read_whole, replace_whole

FILE: Final = "node.json"
FILE_BYTES_MAX: Final = 64 * limits.KIB


def find_name(files: Files, directory: str, wanted: str | None, otherwise: str) -> str:
    """The node's name: the one asked for, else the one that it had, else `otherwise`. It is kept.

    Metadata is never a reason to lose data: a damaged file is replaced, and a name that changes
    changes nothing about the logs.
    """
    path = f"{directory}/{FILE}"
    kept = _read_name(files, path)
    name = wanted or kept or otherwise
    if name != kept:
        files.make_directory(directory)
        replace_whole(files, path, json.dumps({"name": name}).encode())
    return name


def _read_name(files: Files, path: str) -> str | None:
    if not files.exists(path):
        return None
    try:
        name = json.loads(read_whole(files, path, FILE_BYTES_MAX))["name"]
    except (ValueError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) and name else None
