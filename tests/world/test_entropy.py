"""The contract of `Entropy`, for the real one and for the simulated one."""

import pytest

from busnode.testing.sim import SimEntropy
from busnode.world.entropy import Entropy
from busnode.world.real_entropy import RealEntropy


@pytest.fixture(params=["real", "simulated"])
def entropy(request: pytest.FixtureRequest) -> Entropy:
    return RealEntropy() if request.param == "real" else SimEntropy(1)


def test_every_draw_is_in_its_range_and_no_two_are_alike(entropy: Entropy) -> None:
    count = 1000
    fractions = [entropy.random() for _ in range(count)]
    numbers = [entropy.u64() for _ in range(count)]
    ids = [entropy.broker_id() for _ in range(count)]
    assert all(0 <= fraction < 1 for fraction in fractions)
    assert all(0 <= number < 2**64 for number in numbers)
    assert max(numbers) > 2**63
    assert all(len(each) == 16 for each in ids)
    assert len(set(fractions)) == len(set(numbers)) == len(set(ids)) == count
