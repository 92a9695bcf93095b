"""RuntimeProfile as the API server holds it: the profiles of files, with the API server's names and rules."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from strata.cluster.api.crd.fields import (
    OURS,
    Written,
    cel_rules,
    map_by,
)
from strata.cluster.api.profile_schema import (
    NO_TREE_FOR_PODS,
    NOT_FOR_PODS,
    HostPath,
    MountEntry,
    Name,
    ProfileFields,
)

_TREES: Final = "|".join(path.removeprefix("/") for path in NO_TREE_FOR_PODS)
_ALONE: Final = "|".join(path.removeprefix("/") for path in NOT_FOR_PODS)


class MountSpec(MountEntry):
    """A path of the host in the container; read only unless said otherwise."""

    model_config = OURS

    host_path: Annotated[
        HostPath,
        Field(
            json_schema_extra=cel_rules(
                (
                    f"!self.matches('^/(({_ALONE})/?|({_TREES})(/.*)?)$')",
                    "this path of the host is not for pods",
                )
            )
        ),
    ]


class RuntimeProfileSpec(ProfileFields):
    """What a pod needs to run on some accelerators of one vendor, and what the webhook injects."""

    model_config = OURS

    mounts: Annotated[list[MountSpec], Field(max_length=32, json_schema_extra=map_by("name"))] = Field(default=[])  # type: ignore[assignment]


class ProfileMeta(Written):
    """What is read of a profile's metadata."""

    name: Name


class RuntimeProfileObject(Written):
    """The object as it is read."""

    metadata: ProfileMeta
    spec: RuntimeProfileSpec
