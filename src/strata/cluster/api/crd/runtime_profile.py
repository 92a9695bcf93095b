"""RuntimeProfile: what a pod needs on a kind of card, as an object of the API server, and back."""

from __future__ import annotations

from typing import Any

from strata.cluster.api.crd import models
from strata.cluster.api.crd.document import ObjectDocument
from strata.cluster.api.kinds import RUNTIME_PROFILE, Object
from strata.cluster.api.profile_schema import build
from strata.cluster.scheduling.profile import RuntimeProfile


def profile_of(obj: Object) -> RuntimeProfile:
    """Return the profile an object holds. Raises BadFile with every fault, by `spec.field`."""
    document = ObjectDocument(obj)
    checked = document.check(models.RuntimeProfileObject)
    return build(checked.metadata.name, checked.spec, document, under=("spec",))


def profile_object(profile: RuntimeProfile) -> Object:
    """Return a profile as an object; what is empty is left out."""
    spec: dict[str, Any] = {
        "vendor": profile.vendor,
        "framework": profile.framework,
        "models": list(profile.models),
        "image": profile.image,
        "resource": profile.resource,
        "env": dict(profile.env),
        "noP2pEnv": dict(profile.no_p2p_env),
        "devicesEnv": profile.devices_env,
        "mounts": [
            {
                "name": mount.name,
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "isReadOnly": mount.is_read_only,
            }
            for mount in profile.mounts
        ],
        "codeMount": profile.code_mount,
        "entrypoints": {name: list(words) for name, words in profile.entrypoints.items()},
        "nodeSelector": dict(profile.node_selector),
        "tolerations": [dict(toleration) for toleration in profile.tolerations],
        "source": profile.source,
        "wasTried": profile.was_tried,
    }
    return {
        "apiVersion": RUNTIME_PROFILE.api_version,
        "kind": RUNTIME_PROFILE.kind,
        "metadata": {"name": profile.name},
        "spec": {key: value for key, value in spec.items() if value not in ("", [], {})},
    }
