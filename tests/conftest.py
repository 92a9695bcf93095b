"""What every test gets, whoever runs it: a home, a terminal, signals, a time limit; and real parts, or why not."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from strata.host.record import interpreter_holders
from tests.cluster.integration import control_plane, real_node
from tests.control.drivers import slurm_cluster
from tests.host import traces as host_traces
from tests.host.vm import guest
from tests.serving.engines import engines
from tests.slicing import fake_accelerators
from tests.support import laws
from tests.web import browser

# A loaded machine is slow now and then; how fast something is benchmarks say. The examples are the same in every
# run, so that what was green is green; `make test-laws` draws others. No database: the checkout may be read-only.
settings.register_profile(
    "strata",
    derandomize=not laws.IS_LONG,
    max_examples=laws.num_examples(laws.NUM_EXAMPLES),
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("strata")

MINUTES_LIMIT_S = 1800
"""For a test that takes minutes, or boots a virtual machine. All others: see `timeout` in pyproject.toml."""


def restore_signals() -> None:
    """Let what the tests start begin with the signals of a terminal, also under `nohup make test &`.

    There SIGINT, SIGQUIT and SIGHUP are ignored, and a program that is started inherits that. A handler, unlike
    SIG_IGN, is not inherited: what it is started by still outlives its terminal, as nohup promises.
    """
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
        (signal.SIGHUP, lambda *_: None),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
            os.environ["PYTEST_OUTLIVES_TERMINAL"] = "1"
    # The workers of xdist are started with SIGHUP's default: they shall outlive the terminal too.
    if os.environ.get("PYTEST_OUTLIVES_TERMINAL"):
        signal.signal(signal.SIGHUP, lambda *_: None)


restore_signals()

PARTS = {
    "control-plane": control_plane.find,
    "node": real_node.find,
    "node-rights": real_node.find_rights,
    "cc": fake_accelerators.find_compiler,
    "cudart": fake_accelerators.find_cudarts,
    "tracing": host_traces.find,
    "py-spy": interpreter_holders.find,
    "slurm": slurm_cluster.find,
    "vm": guest.find,
    "chromium": browser.find,
    "engines": engines.find,
}
"""Real parts that are no modules: what finds each, or returns None."""
KERNEL = {"tracing", "node-rights"}
"""Those that nobody can install where the kernel, or who runs us in it, does not give them."""
SHARED = ("slurm", "tracing", "engines", "chromium")
"""Those that are one for all tests of a machine, or take much of its memory."""


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So that no test reads or writes the user's history.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # So that lines break where the test expects it, whatever terminal it is started from.
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.hookimpl(tryfirst=True)  # after the conftest of each room has set its marks, before xdist reads them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give those of minutes more time; let those that share a server, a device or fixtures run in one process."""
    for item in items:
        if not item.get_closest_marker("real"):
            continue
        parts = {part for marker in item.iter_markers("real") for part in marker.args}
        if not item.get_closest_marker("timeout") and (item.get_closest_marker("full") or "vm" in parts):
            item.add_marker(pytest.mark.timeout(MINUTES_LIMIT_S))
        if config.pluginmanager.hasplugin("xdist") and not item.get_closest_marker("xdist_group"):
            shared = next((part for part in SHARED if part in parts), None)
            item.add_marker(pytest.mark.xdist_group(shared or f"{item.path.parent.name}/{item.path.stem}"))


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
            is_kernel = set(missing) <= KERNEL
            how = "this kernel, or the user we are, does not give it" if is_kernel else f"`{target}` installs it"
            reason = f"needs {', '.join(missing)}: {how}"
            if os.environ.get(wanted) and not is_kernel:
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)


def _find(part: str) -> object | None:
    return PARTS[part]() if part in PARTS else importlib.util.find_spec(part)
