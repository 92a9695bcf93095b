"""Fit the constants of `strata.simulate.kernel_rates` to published runs and show how well they foretell others.

    python benchmarks/fit_kernels.py FILE.csv [FILE.csv ...]

FILE.csv are tables of `strata bench published`. Three fits, each to the rows it is about: dense models in 16 bit,
dense models in 8 bit, mixtures of experts. Prints the constants, the errors by source, and those of each source
under constants fitted to the others (of a fit that sees more than one source).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from strata.evaluation.published_benchmarks.published_layout import evaluate
from strata.evaluation.published_benchmarks.published_run import PublishedRun, read_runs
from strata.simulate import kernel_rates

OUTLIER = 0.1
"""Log errors well past this count by their size, not their square: one odd row must not set the constants."""
PRIOR = 0.1
"""Weight of a constant's own start: a quarter off it costs as much as one row that is 2.5 % off. It decides where
the rows left say nothing of a constant."""
STEP, ROUNDS = 0.01, 4

Setter = Callable[[float], None]


def share(family: str, *names: str) -> Setter:
    def put(value: float) -> None:
        kernel_rates.SHARES[family] = replace(kernel_rates.SHARES[family], **dict.fromkeys(names, value))

    return put


def constant(name: str) -> Setter:
    return lambda value: setattr(kernel_rates, name, value)


FITS: dict[str, dict[str, tuple[float, Setter]]] = {
    "dense, 16 bit": {
        "matmul A100": (0.7, share("A100", "matmul")),
        "matmul H100": (0.6, share("H100", "matmul")),
        "ATTENTION_SHARE": (0.5, constant("ATTENTION_SHARE")),
        "SUMS_FACTOR": (1.5, constant("SUMS_FACTOR")),
    },
    "dense, 8 bit": {
        "matmul_fp8 H100": (0.6, share("H100", "matmul_fp8")),
        **{f"matmul {card}": (0.6, share(card, "matmul", "matmul_fp8")) for card in ("B200", "GB200", "GB300")},
    },
    "mixtures": {"SORT_S": (60e-9, constant("SORT_S"))},
}


def kind(run: PublishedRun) -> str:
    if run.spec.experts is not None:
        return "mixtures"
    return "dense, 8 bit" if run.precision == "fp8" else "dense, 16 bit"


def log_errors(runs: Sequence[PublishedRun]) -> np.ndarray:
    return np.array([np.log(evaluate(run).report.step_time_s / run.step_s) for run in runs])


def fit(runs: Sequence[PublishedRun], constants: dict[str, tuple[float, Setter]]) -> np.ndarray:
    """Gauss-Newton on the logarithms of the constants, weighted as soft L1 asks, drawn weakly to their starts."""
    setters = [setter for _, setter in constants.values()]

    def errors(logs: np.ndarray) -> np.ndarray:
        for setter, value in zip(setters, np.exp(logs), strict=True):
            setter(float(value))
        return log_errors(runs)

    logs = first = np.log([start for start, _ in constants.values()])
    for _ in range(ROUNDS):
        now = errors(logs)
        slope = np.array([(errors(logs + STEP * row) - now) / STEP for row in np.eye(len(logs))]).T
        weight = (1 + (now / OUTLIER) ** 2) ** -0.25
        left = np.concatenate([slope * weight[:, None], PRIOR * np.eye(len(logs))])
        right = np.concatenate([now * weight, PRIOR * (logs - first)])
        logs = logs - np.linalg.lstsq(left, right, rcond=None)[0]
    errors(logs)
    return np.exp(logs)


def by_source(runs: Sequence[PublishedRun], errors: np.ndarray) -> str:
    parts = []
    for source in dict.fromkeys(run.source for run in runs):
        own = np.expm1(errors[[run.source == source for run in runs]])
        parts.append(f"{source} {100 * np.abs(own).mean():.1f}% ({100 * own.mean():+.1f}%)")
    return "  ".join(parts)


def main(*paths: str) -> None:
    table = [run for path in paths for run in read_runs(path) if run.step_s is not None]
    for name, constants in FITS.items():
        runs = [run for run in table if kind(run) == name]
        if not runs:
            continue
        seen = {kernel_rates.FAMILIES.get(run.accelerator.name.partition("-")[0]) for run in runs}
        constants = {
            name: item for name, item in constants.items() if not (card := name.partition(" ")[2]) or card in seen
        }
        values = fit(runs, constants)
        print(f"{name}: {len(runs)} rows")
        print("  constants        ", "  ".join(f"{k} {v:.3g}" for k, v in zip(constants, values, strict=True)))
        print("  mean |error| (bias)", by_source(runs, log_errors(runs)))
        unseen = np.zeros(len(runs))
        sources = dict.fromkeys(run.source for run in runs)
        for source in sources if len(sources) > 1 else ():
            fit([run for run in runs if run.source != source], constants)
            left_out = [run.source == source for run in runs]
            unseen[left_out] = log_errors([run for run in runs if run.source == source])
        if len(sources) > 1:
            print("  source left out    ", by_source(runs, unseen))
            print(f"  all, left out       {100 * np.abs(np.expm1(unseen)).mean():.1f}%")
        for (_, setter), value in zip(constants.values(), values, strict=True):
            setter(float(value))


if __name__ == "__main__":
    main(*sys.argv[1:])
