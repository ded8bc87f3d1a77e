"""The asserts of what the tests share are to speak as those of the tests do."""

import pytest

pytest.register_assert_rewrite("tests.segments.samples", "tests.segments.store_contract")
