"""What all tests share."""

import os

import pytest

# The asserts of what tests share are to speak as those of the tests do.
pytest.register_assert_rewrite(
    "tests.client.scripted_node",
    "tests.node.hosted_node",
    "tests.node.namespaces",
    "tests.node.process_cluster",
    "tests.node.raw_client",
    "tests.segments.samples",
    "tests.segments.store_contract",
    "tests.wire.samples",
)

# It is taken out of the environment, since a node that a test starts knows no such setting.
NAMESPACES = os.environ.pop("BUSNODE_NAMESPACES", None)


@pytest.fixture(scope="session")
def namespaces_required() -> bool:
    """Whether a machine on which there can be no network namespaces is a failure."""
    return NAMESPACES == "required"
