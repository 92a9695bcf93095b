"""strata: one scheduler for AI compute, from data centres to CPU cores.

    >>> import strata
    >>> strata.plan("aws10", "llama-3.1-70b").best

What `__all__` names is imported when it is first used: `import strata` loads nothing else. Its types are in
`__init__.pyi`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "Client": "strata.control.client:Client",
    "Fleet": "strata.fleet.fleet:Fleet",
    "Job": "strata.workload.job:TrainingJob",
    "Model": "strata.workload.model:ModelSpec",
    "explain": "strata.api.explain:explain",
    "fleet_data": "strata.api.fleets:fleet_data",
    "host_report": "strata.api.host:host_report",
    "load_fleet": "strata.fleet.schema:load_fleet",
    "load_job": "strata.workload.schema:load_job",
    "load_model": "strata.workload.huggingface:model",
    "load_serving_job": "strata.workload.serving_schema:load_serving_job",
    "pareto": "strata.api.plans:pareto",
    "plan": "strata.api.plans:plan",
    "serve_plan": "strata.api.plans:serve_plan",
    "simulate": "strata.api.simulate:simulate",
    "svg": "strata.simulate.svg:svg",
    "whatif": "strata.api.whatif:whatif",
}

__all__ = [
    "Client", "Fleet", "Job", "Model", "__version__", "explain", "fleet_data", "host_report", "load_fleet",
    "load_job", "load_model", "load_serving_job", "pareto", "plan", "serve_plan", "simulate", "svg", "whatif",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'strata' has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
