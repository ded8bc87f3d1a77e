"""What all tests share."""

import os
from typing import Any

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

# They are taken out of the environment, since a node that a test starts knows no such settings; the
# processes among which xdist divides the tests are told of them in another way.
REQUIRED = {
    name: os.environ.pop(name, None) == "required"
    for name in ("BUSNODE_NAMESPACES", "BUSNODE_POWER_CUT", "BUSNODE_BROWSER")
}


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called by xdist for each process that it starts."""
    node.workerinput["required"] = REQUIRED


def _is_required(config: pytest.Config, name: str) -> bool:
    told: dict[str, Any] = getattr(config, "workerinput", {})
    return bool(told.get("required", REQUIRED)[name])


@pytest.fixture(scope="session")
def namespaces_required(pytestconfig: pytest.Config) -> bool:
    """Whether a machine on which there can be no network namespaces is a failure."""
    return _is_required(pytestconfig, "BUSNODE_NAMESPACES")


@pytest.fixture(scope="session")
def power_cut_required(pytestconfig: pytest.Config) -> bool:
    """Whether a machine on which no disk's power can be cut is a failure."""
    return _is_required(pytestconfig, "BUSNODE_POWER_CUT")


@pytest.fixture(scope="session")
def browser_required(pytestconfig: pytest.Config) -> bool:
    """Whether a machine without a browser is a failure."""
    return _is_required(pytestconfig, "BUSNODE_BROWSER")
