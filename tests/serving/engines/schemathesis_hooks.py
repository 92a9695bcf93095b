"""What schemathesis is told: the model that is served, or all it would hear of is that there is no such model."""

from __future__ import annotations

import schemathesis


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict) and isinstance(body.get("model"), str) and 1 <= len(body["model"]) <= 200:
        body["model"] = "llama"
    return body


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    return {"name": "llama"} if path_parameters else path_parameters
