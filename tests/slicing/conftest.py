"""The fake accelerators, compiled once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

import fake_accelerators


@pytest.fixture(scope="session")
def accelerators(tmp_path_factory: pytest.TempPathFactory) -> fake_accelerators.Accelerators:
    if fake_accelerators.find_compiler() is None:
        pytest.skip("needs a C compiler, cc")
    return fake_accelerators.build(tmp_path_factory.mktemp("accelerators"))


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "slice.ledger"
