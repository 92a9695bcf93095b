"""Jobs as they are submitted: a file and what it names, in one piece that the store keeps and the API carries."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from strata.control.state import JobSpec
from strata.errors import BadFile, UsageError
from strata.files import Document, read_document, read_text
from strata.workload.job import TrainingJob
from strata.workload.job_entries import TrainingJobFile
from strata.workload.schema import job_from_document

_PATHS: Final = ("model", "profile")


def read_job(path: str | Path) -> tuple[JobSpec, dict[str, Any]]:
    """Return what a file submits, and the piece to send. Raises BadFile and UsageError as a planner does."""
    document, base = read_document(path), Path(path).parent
    training = job_from_document(document, base)
    spec = _spec(document, training, 0.0)
    texts = {}
    for key in _PATHS:
        named = document.data.get(key)
        file = base / named if named else None
        if file is not None and file.is_dir():
            file = file / "config.json"
        if file is not None and file.is_file():
            texts[key] = read_text(file)
    return spec, {"document": document.data, "texts": texts}


def job_of(piece: Mapping[str, Any], submitted_s: float) -> JobSpec:
    """Return the job of a piece that `read_job` made. Raises BadFile and UsageError."""
    return _spec(*_read(piece), submitted_s)


def training_of(piece: Mapping[str, Any]) -> TrainingJob:
    """Return how the job of a piece is planned, whether it says how to run it or not. Raises as `job_of`."""
    return _read(piece)[1]


def _read(piece: Mapping[str, Any]) -> tuple[Document, TrainingJob]:
    data, texts = piece.get("document"), piece.get("texts", {})
    if not isinstance(data, dict) or not isinstance(texts, dict) or set(texts) - set(_PATHS):
        raise UsageError("a job is {document: {...}, texts: {model: ..., profile: ...}}")
    with tempfile.TemporaryDirectory() as folder:
        for key, text in texts.items():
            (Path(folder) / f"{key}.json").write_text(str(text), encoding="utf-8")
        named = {key: f"{key}.json" for key in texts}
        for key in _PATHS:
            if key in data and key not in texts and isinstance(data[key], str) and "/" in data[key]:
                raise UsageError(f"{key}: {data[key]} is not among the texts that came with the job")
        document = Document("job", {**data, **named}, {})
        return document, job_from_document(document, Path(folder))


def dump(piece: Mapping[str, Any]) -> str:
    """Return a piece as text, the same for the same job."""
    return json.dumps(piece, sort_keys=True)


def _spec(document: Document, training: TrainingJob, submitted_s: float) -> JobSpec:
    run = document.check(TrainingJobFile).run
    if run is None:
        fault = document.fault((), "says how to plan the job and not how to run it: `run:` is missing")
        raise BadFile([fault], hint="run: {command: [python, train.py], steps: 1000}")
    return JobSpec(
        training.name, training, run.steps, command=run.command, submitted_s=submitted_s, priority=run.priority,
        owner=run.owner, weight=run.weight, min_devices=run.min_devices, max_devices=run.max_devices,
        is_preemptible=run.preemptible, can_resume=run.resume, grace_s=run.grace, save_every=run.save_every or 0,
    )  # fmt: skip
