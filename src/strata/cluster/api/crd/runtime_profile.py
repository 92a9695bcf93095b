"""RuntimeProfile: what a pod needs on a kind of card, as an object of the API server, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from strata.cluster.api.crd.document import ObjectDocument
from strata.cluster.api.crd.fields import camel
from strata.cluster.api.crd.profile_schema import RuntimeProfileObject
from strata.cluster.api.kinds import RUNTIME_PROFILE, Object
from strata.cluster.api.profile_schema import build
from strata.cluster.scheduling.profile import RuntimeProfile


def profile_of(obj: Object) -> RuntimeProfile:
    """Return the profile an object holds. Raises BadFile with every fault, by `spec.field`."""
    document = ObjectDocument(obj)
    checked = document.check(RuntimeProfileObject)
    return build(checked.metadata.name, checked.spec, document, under=("spec",))


def profile_object(profile: RuntimeProfile) -> Object:
    """Return a profile as an object; what is empty is left out."""
    fields = json.loads(json.dumps(asdict(profile)))  # tuples are lists there
    name, mounts = fields.pop("name"), fields.pop("mounts")
    spec = fields | {"mounts": [_camel(mount) for mount in mounts]}
    return {
        "apiVersion": RUNTIME_PROFILE.api_version,
        "kind": RUNTIME_PROFILE.kind,
        "metadata": {"name": name},
        "spec": _camel({key: value for key, value in spec.items() if value not in ("", [], {})}),
    }


def _camel(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {camel(name): value for name, value in fields.items()}
