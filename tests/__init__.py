"""The tests, in the folders of `strata`'s packages: `tests/host/trace` tests `strata.host.trace`.

Builders and fakes lie beside the tests that share them, those of several rooms in `tests/support`. Everything is
imported by its full name: `from tests.support.builders import fleet`.
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
"""Data beside the checkout, not in the repository: a test that reads it is skipped where it is not there."""
