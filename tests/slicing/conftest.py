"""The fake accelerators, compiled once a session, by whichever worker comes first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slicing import fake_accelerators, ledger_builders


@pytest.fixture(scope="session")
def accelerators(tmp_path_factory: pytest.TempPathFactory) -> fake_accelerators.Accelerators:
    if fake_accelerators.find_compiler() is None:
        pytest.skip("needs a C compiler, cc")
    base = tmp_path_factory.getbasetemp()
    # The workers of one run have a folder each, in one of all.
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "accelerators"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "built").exists():
            fake_accelerators.build(folder)
            (folder / "built").touch()
    return fake_accelerators.Accelerators(folder)


@pytest.fixture(autouse=True)
def _no_slot_outlives_its_test() -> Iterator[None]:
    yield
    ledger_builders.die()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "slice.ledger"
