"""What every test gets: a home of its own; and real parts, or a reason why not."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.cluster.integration import control_plane
from tests.host import traces as host_traces
from tests.host.vm import guest
from tests.slicing import fake_accelerators

# A loaded machine is slow now and then; how fast something is benchmarks say.
settings.register_profile("strata", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("strata")

PARTS = {
    "control-plane": control_plane.find,
    "cc": fake_accelerators.find_compiler,
    "cudart": fake_accelerators.find_cudarts,
    "tracing": host_traces.find,
    "vm": guest.find,
}
"""Real parts that are no modules: what finds each, or returns None."""
KERNEL = {"tracing"}
"""Those that nobody can install where the kernel, or who runs us in it, does not give them."""


@pytest.fixture(autouse=True)
def _own_state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So that no test reads or writes the user's history.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose real part is not here; under `make test-real`, where it has to be, fail it.

    Those in the virtual machine take long enough for a target of their own.
    """
    for marker in item.iter_markers("real"):
        is_vm = "vm" in marker.args
        target, wanted = ("make vm-test", "STRATA_VM") if is_vm else ("make test-real", "STRATA_REAL")
        if is_vm and not os.environ.get(wanted):
            pytest.skip(f"in a virtual machine: `{target}` runs it")
        missing = [part for part in marker.args if _find(part) is None]
        if missing:
            reason = f"needs {', '.join(missing)}: `{target}` installs it"
            if os.environ.get(wanted) and not set(missing) <= KERNEL:
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)


def _find(part: str) -> object | None:
    return PARTS[part]() if part in PARTS else importlib.util.find_spec(part)
