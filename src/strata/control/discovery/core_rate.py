"""What one core does: `python -m strata.control.discovery.core_rate` prints it as JSON. Best of several, < 2 s."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

_TIMES: Final = 5
_SIZE: Final = 768
_BYTES: Final = 2**26


def main() -> None:
    """Measure, and print."""
    a = np.random.default_rng(0).random((_SIZE, _SIZE), dtype=np.float32)
    source = np.zeros(_BYTES, dtype=np.uint8)
    dest = np.empty_like(source)
    rates = {
        "fp32_flops": 2 * _SIZE**3 / _best(lambda: a @ a),
        "copy_bytes_per_s": 2 * _BYTES / _best(lambda: np.copyto(dest, source)),  # read and written
    }
    print(json.dumps(rates))  # noqa: T201 - what the parent waits for


def _best(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
