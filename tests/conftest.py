"""The asserts of what tests share are to speak as those of the tests do."""

import pytest

pytest.register_assert_rewrite(
    "tests.client.scripted_node",
    "tests.node.raw_client",
    "tests.segments.samples",
    "tests.segments.store_contract",
    "tests.wire.samples",
)
