"""Fields of our objects at the API server, as all three kinds have them: their names, limits and rules.

The definitions given to the API server are made from the models of `node_schema.py`, `profile_schema.py` and
`claim_schema.py`. A field that is not there is absent, never null. Rules the API server checks itself (CEL) stand
beside what they are of; a figure that is not finite never gets past these models.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from strata.decision import Trust
from strata.files import FileModel

MOST_DEVICES: Final = 128
MOST_NOTES: Final = 64
MOST_NODES: Final = 1000
MOST_BESIDE: Final = 100
"""Of a gang that has its place: all nodes of thousands would be 150 kB a gang, in etcd and in each watch."""
MOST_HELD: Final = 512
LONGEST: Final = 1024
LONGEST_WORD: Final = 253
LONGEST_MESSAGE: Final = 32_768


def camel(name: str) -> str:
    """Return `memory_bytes` or `gang-size` as the API server's fields are written: `memoryBytes`, `gangSize`."""
    first, *rest = name.replace("-", "_").split("_")
    return first + "".join(word.capitalize() for word in rest)


def _extensions(**extensions: Any) -> dict[str, Any]:
    return {f"x-kubernetes-{key.replace('_', '-')}": value for key, value in extensions.items()}


def cel_rules(*rules: tuple[str, str]) -> dict[str, Any]:
    """Return what makes the API server check rules itself: expressions in CEL, each with its message."""
    return _extensions(validations=[{"rule": rule, "message": message} for rule, message in rules])


def map_by(key: str) -> dict[str, Any]:
    """Return what makes a list a map by one of its entries' fields, for server-side apply."""
    return _extensions(list_type="map", list_map_keys=[key])


OURS: Final = ConfigDict(alias_generator=camel, populate_by_name=False, use_attribute_docstrings=True)


class Written(FileModel):
    """What agents and controllers write: older ones read it as well, and leave out what they do not know."""

    model_config = ConfigDict(extra="ignore", **OURS)


Word = Annotated[str, Field(max_length=LONGEST_WORD)]
Sentence = Annotated[str, Field(max_length=LONGEST)]
Amount = Annotated[int, Field(ge=0, le=2**60)]
Figure = Annotated[float, Field(ge=0)]
Grade = Literal["measured", "calibrated", "analytic", "assumed"]
Moment = Annotated[
    str,
    Field(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})$",
        json_schema_extra={"format": "date-time"},
    ),
]
assert set(Grade.__args__) == set(Trust), "grades are those of Trust"  # type: ignore[attr-defined]


class Condition(Written):
    """A condition, as everywhere in Kubernetes."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[
        str, Field(min_length=1, max_length=LONGEST, pattern=r"^[A-Za-z](?:[A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ]
    message: Annotated[str, Field(max_length=LONGEST_MESSAGE)]
    last_transition_time: Moment
    observed_generation: Annotated[int, Field(ge=0)] | None = None


Conditions = Annotated[list[Condition], Field(max_length=16, json_schema_extra=map_by("type"))]
