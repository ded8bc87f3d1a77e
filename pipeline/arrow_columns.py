"""Columns of bodies as arrays of Arrow, made of many records at once."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from busnode.pipeline.arrow import Array, pa

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

_VALUES: Final = dict[str, str].values


def payload_table(body: memoryview, at: int, count: int) -> Bytes | None:
    """The payloads that stand at `at` as a table, a row for each, if all have the same length.

    All that stands there must be an array of `count` byte strings that begin alike: then each next
    one begins where the one before ends, and there is nothing that could be anything else. None for
    whatever is not so; `decode_payloads` is for that.
    """
    if count < 16:
        if len(body) <= at or body[at] != 0x90 | count:
            return None
        at += 1
    else:
        if bytes(body[at : at + 3]) != b"\xdc" + count.to_bytes(2, "big"):
            return None
        at += 3
    width, rest = divmod(len(body) - at, count)
    if rest or not width:
        return None
    head = bytes(body[at : at + 1])
    if head == b"\xc4" and width >= 2:
        head += (width - 2).to_bytes(1, "big") if width - 2 < 256 else b""
        size = 2
    elif head == b"\xc5" and width >= 3:
        head += (width - 3).to_bytes(2, "big") if width - 3 < 65536 else b""
        size = 3
    else:
        return None
    table = np.frombuffer(body, np.uint8, offset=at).reshape(count, width)
    if len(head) != size or not (table[:, :size] == np.frombuffer(head, np.uint8)).all():
        return None
    return table[:, size:]


def payload_column(parts: Sequence[Bytes | list[bytes]]) -> Array:
    lengths = [
        np.fromiter(map(len, part), np.int64, len(part))
        if isinstance(part, list)
        else np.full(len(part), part.shape[1])
        for part in parts
    ]
    offsets = np.zeros(sum(map(len, lengths)) + 1, np.int32)
    np.cumsum(np.concatenate(lengths), out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    at = 0
    for part, each in zip(parts, lengths, strict=True):
        size = int(each.sum())
        if isinstance(part, list):
            data[at : at + size] = np.frombuffer(b"".join(part), np.uint8)
        else:
            data[at : at + size].reshape(part.shape)[:] = part
        at += size
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def text_column(parts: Sequence[Sequence[str | None] | None], counts: Sequence[int]) -> Array:
    if not any(part is not None for part in parts):
        return pa.nulls(sum(counts), pa.string())
    filled = (
        [None] * count if part is None else part for part, count in zip(parts, counts, strict=True)
    )
    return pa.array(list(chain.from_iterable(filled)), pa.string())


def map_column(
    parts: Sequence[Sequence[Mapping[str, str] | None] | None], counts: Numbers, kind: Any
) -> Array:
    """A map for each row, empty where a message has none."""
    offsets = np.zeros(int(counts.sum()) + 1, np.int32)
    there: list[dict[str, str]] = []
    at = 1
    for part, count in zip(parts, counts.tolist(), strict=True):
        if part is not None:
            filled = np.fromiter(map(bool, part), np.bool_, count)
            some = cast("list[dict[str, str]]", list(filter(None, part)))
            offsets[at : at + count][filled] = np.fromiter(map(len, some), np.int32, len(some))
            there += some
        at += count
    np.cumsum(offsets, out=offsets)
    keys = pa.array(list(chain.from_iterable(there)), pa.string())
    values = pa.array(list(chain.from_iterable(map(_VALUES, there))), pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets), keys, values, type=kind)
