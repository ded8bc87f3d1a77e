"""Under a flood of connections a good client gets all of its messages, and nothing stays behind.

What it costs the client in time is for `scripts/flood` to tell.
"""

from pathlib import Path

import pytest

from .flood import MIB, flood

GROWTH_BYTES_MAX = 48 * MIB
"""6,000 connections, of which a third are let in at any moment."""


@pytest.mark.scenario
async def test_a_good_client_gets_everything_under_a_flood(tmp_path: Path) -> None:
    report = await flood(tmp_path, 5000, 1000, 1, 5.0, 1, print)
    print(report.as_json())
    assert report.wrong == []
    (flooded,) = report.floods
    assert flooded["connected"] > 5000
    calm_bytes, flooded_bytes = report.resident_bytes
    assert flooded_bytes - calm_bytes < GROWTH_BYTES_MAX
