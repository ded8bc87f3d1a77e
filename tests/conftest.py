"""What all tests share."""

import os

import pytest
from hypothesis import HealthCheck, settings

# By default Hypothesis fails a test whose examples are slow; on a busy machine any can be.
settings.register_profile("busnode", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busnode")

# The asserts of what tests share are to speak as those of the tests do.
pytest.register_assert_rewrite(
    "tests.client.scripted_node",
    "tests.node.hosted_node",
    "tests.node.namespaces",
    "tests.node.power_cut",
    "tests.node.process_cluster",
    "tests.node.raw_client",
    "tests.segments.samples",
    "tests.segments.store_contract",
    "tests.wire.samples",
)

# They are taken out of the environment, since a node that a test starts knows no such settings.
NAMESPACES = os.environ.pop("BUSNODE_NAMESPACES", None)
POWER_CUT = os.environ.pop("BUSNODE_POWER_CUT", None)


@pytest.fixture(scope="session")
def namespaces_required() -> bool:
    """Whether a machine on which there can be no network namespaces is a failure."""
    return NAMESPACES == "required"


@pytest.fixture(scope="session")
def power_cut_required() -> bool:
    """Whether a machine on which no disk's power can be cut is a failure."""
    return POWER_CUT == "required"
