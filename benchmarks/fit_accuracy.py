"""Fit the constants of `strata.evaluation.published_benchmarks.calibrated` and show what each of them is worth.

    python benchmarks/fit_accuracy.py training_cases.json

Prints, for no constant, each alone and both: the fitted values and, per set, the mean absolute error of the fit,
of leave-one-out and of leave-one-set-out. The last line must equal `CALIBRATION`.
"""

from __future__ import annotations

import sys

import numpy as np

from strata.evaluation.published_benchmarks.calibrate import HANDOVERS_S_PER_BYTE, OVERHEADS_S, fit_table
from strata.evaluation.published_benchmarks.calibrated import CALIBRATION
from strata.evaluation.published_benchmarks.case_file import read_cases

NONE = np.zeros(1)


def by_set(errors: dict[str, float]) -> str:
    sets: dict[str, list[float]] = {}
    for name, error in errors.items():
        sets.setdefault(name.rpartition("/")[0], []).append(abs(error))
    return "  ".join(f"{name} {100 * np.mean(values):5.2f}%" for name, values in sets.items())


def main(path: str) -> None:
    file = read_cases(path)
    for handovers, overheads in (
        (NONE, NONE),
        (HANDOVERS_S_PER_BYTE, NONE),
        (NONE, OVERHEADS_S),
        (HANDOVERS_S_PER_BYTE, OVERHEADS_S),
    ):
        table = fit_table(file, handovers_s_per_byte=handovers, overheads_s=overheads)
        best, errors = table.fit()
        print(f"overhead {best.exchange_overhead_s:.3f} s, handover {best.handover_s_per_byte * 1e12:.0f} ps/B")
        print("  fit                ", by_set(errors))
        print("  leave-one-out      ", by_set(table.leave_one_out()))
        print("  leave-one-set-out  ", by_set(table.leave_one_set_out()))
    same = np.allclose(
        (best.exchange_overhead_s, best.handover_s_per_byte),
        (CALIBRATION.exchange_overhead_s, CALIBRATION.handover_s_per_byte),
    )
    print("as shipped" if same else f"NOT as shipped: {CALIBRATION}")


if __name__ == "__main__":
    main(*sys.argv[1:])
