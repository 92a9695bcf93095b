# ruff: noqa: F401 names that `strata` gives from elsewhere
from strata.api.explain import explain as explain
from strata.api.fleets import fleet_data as fleet_data
from strata.api.host import host_report as host_report
from strata.api.plans import pareto as pareto
from strata.api.plans import plan as plan
from strata.api.plans import serve_plan as serve_plan
from strata.api.simulate import simulate as simulate
from strata.api.whatif import whatif as whatif
from strata.control.client import Client as Client
from strata.fleet.fleet import Fleet as Fleet
from strata.fleet.schema import load_fleet as load_fleet
from strata.simulate.svg import svg as svg
from strata.workload.huggingface import model as load_model
from strata.workload.job import TrainingJob as Job
from strata.workload.model import ModelSpec as Model
from strata.workload.schema import load_job as load_job
from strata.workload.serving_schema import load_serving_job as load_serving_job

__version__: str
