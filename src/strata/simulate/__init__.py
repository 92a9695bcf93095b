"""How long, how busy, how dear: one cost model for every planner.

A plan and a fleet go in, a `report.StepReport` and a `timeline` come out. `analytic.StepModel` answers for many
plans at once: `compute` and `memory` per stage, `traffic` per hop, `pipeline` for the exact recurrence of
warm-ups, with `screening` as its closed forms, and `collective` for gradient sums. `events` runs the same plan
operation by operation where links are shared or fail; `compat` says what ASTRA-sim would answer, and `astra`
asks the real binary. `inference` is serving's half of the model.

Planners call it millions of times, so it is arrays in and out; units are seconds and bytes throughout.

The package can be called: `strata.simulate(plan)` is `strata.api.simulate.simulate`, whose name it has.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return import_module("strata.api.simulate").simulate(*args, **kwargs)


# An import of any module here makes `strata.simulate` this package, whatever strata/__init__.py says.
sys.modules[__name__].__class__ = _Callable
