"""What every test of a command gets beside what all tests get."""

import time

import pytest


@pytest.fixture(scope="module", autouse=True)
def _limits_are_of_a_processor():
    """Plans have half a minute: of a processor here, since on a machine that is busy they are cut short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", time.process_time)
        yield
