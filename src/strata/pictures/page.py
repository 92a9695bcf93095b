"""Answers as HTML: what stands in notebooks, in the report and on the dashboard's pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import pairwise
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from strata import units
from strata.pictures.delays import delay_lanes
from strata.pictures.front import plan_points
from strata.pictures.heat import acu_map
from strata.pictures.labels import LABELS
from strata.pictures.ranges import layer_ranges
from strata.pictures.spent import spent_bars
from strata.pictures.svg import STYLE
from strata.pictures.wan import live_map, wan_map
from strata.pictures.waterfall import waterfall
from strata.tables import printable

_TEMPLATES: Final = {"TrainingPlan": "training.html", "ServingPlan": "serving.html", "Fleet": "fleet.html"}

KINDS: Final = tuple(_TEMPLATES)
"""Kinds of answers and files that are drawn."""


def fragment(data: Mapping[str, Any], *, is_styled: bool = True) -> str:
    """Return an answer as HTML without a script: a plan file's content, a serving plan's, or `fleet_data`'s.

    is_styled: with the rules of its pictures; a page that has them asks without. Raises KeyError for other kinds.
    """
    template = environment().get_template(_TEMPLATES[data["kind"]])
    style = f"<style>{STYLE}</style>" if is_styled else ""
    return f'{style}<div class="strata">{template.render(data=data)}</div>'


def pictures(data: Mapping[str, Any]) -> dict[str, Callable[..., str]]:
    """Return what an answer has pictures of, by name; each is drawn as SVG when it is called."""
    if data.get("kind") == "Fleet":
        return {
            "map": partial(wan_map, data["domains"], data["links"]),
            "devices": partial(acu_map, data["domains"]),
        }
    if data.get("lanes"):
        return {"delays": partial(delay_lanes, data)}
    if data.get("pipelines"):
        return {"layers": partial(layer_ranges, data["pipelines"], num_layers=data["job"]["num_layers"])}
    if not data.get("plans"):
        return {}
    best, points = data["plans"][0], data.get("front") or data["plans"]
    drawing = partial(plan_points, points, chosen=best["name"], reasons=_reasons(data))
    drawn: dict[str, Callable[..., str]] = {
        "map": partial(wan_map, data["fleet"]["domains"], [], used=best["devices"], hops=_hops(best)),
        "spent": partial(spent_bars, data["plans"]),
    }
    if any(point["cost_usd_per_mtoken"] is not None for point in points):
        drawn["money"] = partial(drawing, axis="cost_usd_per_mtoken")
    return drawn | {"utilization": partial(drawing, axis="utilization")}


def _reasons(data: Mapping[str, Any]) -> dict[str, str]:
    """Return why plans were not chosen, by name."""
    others = data.get("alternatives", ())
    return {other["name"]: "; ".join(reason["text"] for reason in other["reasons"]) for other in others}


def _hops(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the domains between which a plan's pipelines pass activations, in order."""
    stages = [[stage["domain"] for stage in pipeline["stages"]] for pipeline in plan["plan"]["pipelines"]]
    return [(a, b) for domains in stages for a, b in pairwise(domains) if a != b]


@cache
def environment() -> Environment:
    """Return the templates' environment: everything that is not a picture is escaped."""
    env = Environment(
        loader=PackageLoader("strata.pictures"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    prepare(env)
    return env


def prepare(env: Environment) -> None:
    """Give an environment our units and pictures."""
    env.finalize = _clean
    env.filters |= {
        "time": _known(units.show_time),
        "bytes": _known(units.show_bytes),
        "count": _known(units.show_count),
        "usd": _known(units.show_usd),
        "bandwidth": _known(units.show_bandwidth),
        "share": _known("{:.1%}".format),
    }
    env.globals |= {
        "labels": LABELS,
        "pictures": lambda data: {name: _safe(draw) for name, draw in pictures(data).items()},
        "delay_lanes": _safe(delay_lanes),
        "acu_map": _safe(acu_map),
        "live_map": _safe(live_map),
        "waterfall": _safe(waterfall),
    }


def _clean(value: Any) -> Any:
    """Escape what moves the cursor or turns the writing round: names come from others."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _known(show: Any) -> Any:
    return lambda value: "-" if value is None else show(value)


def _safe(draw: Any) -> Any:
    """Mark a picture as HTML; it has escaped its texts itself."""
    return lambda *args, **kwargs: Markup(draw(*args, **kwargs))
