"""A trained policy as a file: an ONNX scorer, the record of its training beside it, and the safe rule beneath.

Needs onnxruntime alone, not torch. Whatever is wrong with the file, the fleet or the observation, there is an
answer: that of the safe rule, and the reason it was asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.decision import Reason
from strata.errors import BadFile, Fault, UsageError, need
from strata.files import read_json
from strata.training.hi_ppo.features import CONTEXT, FEATURES, VERSION, features
from strata.training.hi_ppo.guard import guard
from strata.training.replan import rules
from strata.training.replan.options import Options

FOLDER: Final = Path(__file__).parent / "policies"
BUNDLED: Final = FOLDER / "hi_ppo.onnx"

RULES: Final = "decides"
ALONE: Final = "one job"
SEVERAL: Final = "several jobs"
UNTRAINED: Final = "untrained"
NETWORK: Final = "network"
"""In a record: {RULES: {ALONE: NETWORK or UNTRAINED, SEVERAL: likewise}}, by which earns more in worlds of the
family; the network where nothing is said.
"""

_MOST_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, eq=False)
class HiPpoPolicy:
    """A scorer and what it was trained on; without a session it is the safe rule.

    record: see `record.py`; {} where the file has none. notes: why the safe rule stands in, where it does.
    """

    file: str
    record: Mapping[str, Any] = field(default_factory=dict)
    session: Any = None
    notes: tuple[Reason, ...] = ()

    @property
    def most_domains(self) -> int:
        """Domains of the largest fleet the policy was evaluated on (0: not recorded)."""
        return int(self.record.get("most_domains", 0))

    def among(self, jobs: int) -> HiPpoPolicy:
        """Return what decides for one of so many jobs on the same links: this policy, or the safe rule where the
        record says that it earns more there (`RULES`), which its notes say.
        """
        family = ALONE if jobs == 1 else SEVERAL
        if self.session is None or self.record.get(RULES, {}).get(family) != UNTRAINED:
            return self
        return HiPpoPolicy(self.file, self.record, None, (Reason("rule-by-record", "", {"family": family}),))

    def choose(self, options: Options) -> Ints:
        """Return the index of one option for each decision, guarded."""
        return self.decide(options)[0]

    def decide(self, options: Options) -> tuple[Ints, tuple[Reason | None, ...]]:
        """Return the guarded picks [B], and for each decision why the policy's own pick was not taken."""
        if self.session is None:
            note = self.notes[0] if self.notes else None
            picks, reasons = guard(options, rules.hysteresis()(options))
            return picks, tuple(reason or note for reason in reasons)
        return guard(options, self.logits(options).argmax(axis=1))

    def logits(self, options: Options) -> Floats:
        """Return [B, P]: the policy's preference; -1e9 for illegal options, NaN where values are not finite."""
        finite = np.isfinite(options.value).all(axis=-1) & np.isfinite(options.cost)
        usable = (finite | ~options.legal).all(axis=1)
        logits = np.full(options.legal.shape, np.nan)
        if usable.any():
            logits[usable] = self.scores(*features(_rows(options, usable)), options.legal[usable])
        return logits

    def scores(self, seen: Any, context: Any, legal: Any) -> Floats:
        """Return the logits [B, P] of features as `features.py` makes them. Needs a session."""
        inputs = {"features": seen, "context": context, "legal": legal}
        return np.asarray(self.session.run(["logits"], inputs)[0], dtype=np.float64)


def _rows(options: Options, keep: Any) -> Options:
    return Options(
        options.value[keep], options.cost[keep], options.links[keep], options.current[keep], options.legal[keep],
        options.preference[keep], options.inside,
    )  # fmt: skip


def safe_policy(note: Reason | None = None) -> HiPpoPolicy:
    """Return the safe rule as a policy: what stands in where a policy cannot be used."""
    return HiPpoPolicy("", notes=() if note is None else (note,))


def load_policy(path: str | Path | None = None) -> HiPpoPolicy:
    """Load a policy file, the bundled one by default.

    A file made for other features is answered with the safe rule and a note. Raises UsageError for a missing
    file, BadFile for one that is no policy, MissingPart where onnxruntime is not installed.
    """
    file = BUNDLED if path is None else Path(path)
    if not file.is_file():
        raise UsageError(f"{file}: no such policy file", hint="strata learn export, or leave --policy away")
    if file.stat().st_size > _MOST_BYTES:
        raise BadFile([Fault(str(file), "too large to be a policy")])
    runtime = need("onnxruntime", extra="train")
    quiet = runtime.SessionOptions()
    quiet.intra_op_num_threads = 1  # a decision is some microseconds of work: threads only cost
    quiet.log_severity_level = 3
    try:
        session = runtime.InferenceSession(file.read_bytes(), quiet, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises one class a cause, none of them public
        raise BadFile([Fault(str(file), f"not an ONNX model: {str(error).splitlines()[0]}")]) from None
    made_for = dict(session.get_modelmeta().custom_metadata_map)
    record = _record(file)
    if made_for != metadata():
        other = made_for.get("strata_policy_version", "none")
        return HiPpoPolicy(
            str(file), record, None, (Reason("policy-version", "", {"found": other, "wanted": VERSION}),)
        )
    policy = HiPpoPolicy(str(file), record, session)
    # Of a training that diverged: every option is then NaN, and the first would be taken for the best.
    blank = np.zeros((1, 1, len(FEATURES)), np.float32), np.zeros((1, len(CONTEXT)), np.float32)
    if not np.isfinite(policy.scores(*blank, np.ones((1, 1), dtype=bool))).all():
        raise BadFile([Fault(str(file), "not a policy: its weights are not finite numbers")])
    return policy


def other_seeds() -> list[Path]:
    """Return the bundled policies of the same recipe trained from other seeds."""
    return sorted(FOLDER.glob("hi_ppo_seed*.onnx"))


def metadata() -> dict[str, str]:
    """Return what a policy file says of the features it was trained on, as ONNX metadata."""
    return {
        "strata_policy_version": str(VERSION),
        "strata_features": json.dumps(FEATURES),
        "strata_context": json.dumps(CONTEXT),
    }


def _record(file: Path) -> Mapping[str, Any]:
    beside = file.with_suffix(".json")
    record = read_json(beside) if beside.is_file() else {}
    if not isinstance(record, dict):
        raise BadFile([Fault(str(beside), "should be a mapping, the record of a training run")])
    return record
