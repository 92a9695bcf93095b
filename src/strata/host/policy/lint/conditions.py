"""One condition at a time: texts that break scx_layered, values it refuses, conditions that mean another thing."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Final

from strata.host.policy.lint.finding import LintFinding, Place, finding_at
from strata.host.policy.policy import MAX_ANDS, MAX_CGROUP_REGEXES, MAX_COMM, MAX_ORS, MAX_PATH, Match

MAX_HINT: Final = 1024
_COMMS: Final = ("CommPrefix", "PcommPrefix", "CommPrefixExclude", "PcommPrefixExclude", "CmdJoin")
_CHECKED_COMMS: Final = ("CommPrefix", "PcommPrefix")
_PATHS: Final = ("CgroupPrefix", "CgroupSuffix", "CgroupContains")
_RECENT: Final = ("SystemCpuUtilBelow", "DsqInsertBelow")
_TELLING: Final = (
    "IsGroupLeader", "CommPrefix", "CmdJoin", "AvgRuntime", "PIDEquals", "NiceAbove", "NiceBelow", "NiceEquals",
)  # fmt: skip
"""Conditions that tell one thread of a process from another."""


def conditions(layers: Sequence[Place]) -> Iterator[LintFinding]:
    """Yield what is wrong with single conditions, and with their number."""
    num_regexes = 0
    for at in layers:
        yield from _counts(at)
        for path, match in at.conditions():
            yield from _text(path, match)
            yield from _value(path, match)
            if match.kind == "CgroupRegex":
                num_regexes += 1
                if num_regexes == MAX_CGROUP_REGEXES + 1:
                    problem = f"more than {MAX_CGROUP_REGEXES} CgroupRegex in one policy"
                    yield finding_at("matches-too-many", path, what=problem)
        yield from _template(at, is_last=at is layers[-1])
    yield from _hints(layers)
    yield from _gpu(layers)


def _counts(at: Place) -> Iterator[LintFinding]:
    if len(at.layer.matches) > MAX_ORS:
        problem = f"{len(at.layer.matches)} blocks; a layer takes {MAX_ORS}"
        yield finding_at("matches-too-many", f"{at.path}.matches", what=problem)
    for number, block in enumerate(at.layer.matches):
        if len(block) > MAX_ANDS:
            problem = f"{len(block)} conditions; a block takes {MAX_ANDS}"
            yield finding_at("matches-too-many", at.block(number), what=problem)


def _text(path: str, match: Match) -> Iterator[LintFinding]:
    if match.kind not in _COMMS + _PATHS:
        return
    room = MAX_COMM if match.kind in _COMMS else MAX_PATH
    size = len(match.value.encode())
    if size > room and match.kind in _CHECKED_COMMS + _PATHS:
        yield finding_at("match-text-too-long", path, size=size, limit=room - 1)
    elif size >= room or "\0" in match.value:
        why = "holds a zero byte" if "\0" in match.value else f"is {size} bytes where {room - 1} fit"
        yield finding_at("match-text-panics", path, why=why)
    if match.kind == "CgroupPrefix" and match.value.startswith("/") and match.value != "/":
        yield finding_at("cgroup-path-form", path, why="paths begin without a slash, below /sys/fs/cgroup")
    elif match.kind == "CgroupPrefix" and match.value and not match.value.endswith("/"):
        yield finding_at("cgroup-prefix-open", path, prefix=match.value)
    elif match.kind == "CgroupSuffix" and match.value and not match.value.endswith("/"):
        yield finding_at("cgroup-path-form", path, why="paths end with a slash, which the suffix lacks")


def _value(path: str, match: Match) -> Iterator[LintFinding]:
    if match.kind == "CgroupRegex":
        yield from _regex(path, match.value)
    elif match.kind == "IsKthread" and not match.value:
        yield finding_at("kthread-inverted", path)
    elif match.kind in _RECENT and not 0.0 <= match.value <= 1.0:
        yield finding_at("match-value-range", path, matcher=match.kind, value=match.value, low=0, high=1)
    elif match.kind == "HintEquals":
        if match.value > MAX_HINT:
            yield finding_at(
                "match-value-range", path, matcher=match.kind, value=match.value, low=0, high=MAX_HINT
            )
        yield finding_at("hint-needs-map", path)
    elif match.kind in ("PIDEquals", "TGIDEquals", "PPIDEquals", "NSPIDEquals"):
        yield finding_at("pid-stale", path, matcher=match.kind)


def _regex(path: str, text: str) -> Iterator[LintFinding]:
    if why := fault(text):
        yield finding_at("regex-wrong", path, why=why)
    # Unlike the other conditions on cgroups, it is compared with /sys/fs/cgroup/system.slice.
    elif text.startswith("^") and text[1:2].isalnum() and "|" not in text:
        yield finding_at("cgroup-path-form", path, why="it is compared with whole paths, /sys/fs/cgroup/...")
    elif text.endswith("/$") and "|" not in text:
        yield finding_at("cgroup-path-form", path, why="it is compared with paths that have no slash at their end")


def _template(at: Place, *, is_last: bool) -> Iterator[LintFinding]:
    template = at.layer.template
    if template is None:
        return
    path = f"{at.path}.template.{template.kind}"
    if template.kind == "CgroupRegex":
        yield from _regex(path, template.value)
    elif template.kind != "CgroupSuffix":
        yield finding_at("template-unsupported", path, matcher=template.kind)
    elif template.value == "":
        yield finding_at("template-misused", path, why='every cgroup ends with "", so that each gets a layer')
    elif template.value.endswith("/"):
        yield finding_at("template-idle", path, suffix=template.value)
    if is_last:
        why = "the last layer takes every thread, and a template adds its cgroup as a condition"
        yield finding_at("template-misused", f"{at.path}.template", why=why)


def _hints(layers: Sequence[Place]) -> Iterator[LintFinding]:
    owners: dict[int, Place] = {}
    for at in layers:
        for number, block in enumerate(at.layer.matches):
            hints = [match.value for match in block if match.kind == "HintEquals"]
            recent = [match.kind for match in block if match.kind in _RECENT]
            if why := _hint_misuse(len(hints), recent, len(block)):
                yield finding_at("hint-misused", at.block(number), why=why)
            for hint in hints:
                if owners.setdefault(hint, at).index != at.index:
                    why = f"hint {hint} belongs to layer {owners[hint].layer.name} already"
                    yield finding_at("hint-misused", at.block(number), why=why)


def _hint_misuse(hints: int, recent: Sequence[str], size: int) -> str:
    if hints > 1:
        return "more than one HintEquals in a block"
    if recent and hints != 1:
        return f"{recent[0]} needs one HintEquals beside it"
    if len(set(recent)) < len(recent):
        return f"{recent[0]} twice in a block"
    if hints and size != hints + len(recent):
        return "HintEquals stands with SystemCpuUtilBelow and DsqInsertBelow only"
    return ""


def _gpu(layers: Sequence[Place]) -> Iterator[LintFinding]:
    is_first = True
    for at in layers:
        for number, block in enumerate(at.layer.matches):
            used = next((match for match in block if match.kind in ("UsedGpuTid", "UsedGpuPid")), None)
            if used is None:
                continue
            if is_first:
                yield finding_at("gpu-needs-flag", at.block(number), matcher=used.kind)
                is_first = False
            if used.value and not any(match.kind in _TELLING for match in block):
                yield finding_at("gpu-catches-loaders", at.block(number), matcher=used.kind)


_ESCAPED: Final = r"(?<!\\)(?:\\\\)*"
_PYTHON_ONLY: Final = re.compile(_ESCAPED + r"(?:\(\?(?:[=!>#(]|<[=!]|P=)|\\[0-9Zg]|\\N\{)")
_HALF_BOUNDARY: Final = re.compile(rf"({_ESCAPED})\\b\{{(?:start|end)(?:-half)?\}}")
"""Word boundaries with a side (regex 1.10)."""
_BYTES: Final = re.compile(_ESCAPED + r"\(\?[imsUxR]*-[imsUxR]*u")
_NOT_UTF8: Final = re.compile(
    _ESCAPED + r"(?:\\x[89a-fA-F][0-9a-fA-F]|\\x\{[89a-fA-F][0-9a-fA-F]\}|\\[WDSB]|\.|\[\^)"
)
"""What matches a byte of 128 or more, where bytes are matched."""
_OPEN_BRACE: Final = re.compile(_ESCAPED + r"(?<!\\[pPxuU])\{(?!\d+(?:,\d*)?\})")
_RUST_ONLY: Final = (
    (re.compile(_ESCAPED + r"\\[pP](?:\{[^}]*\}|[A-Z])"), r"\\w"),
    (re.compile(_ESCAPED + r"\\[xuU]\{[0-9a-fA-F]+\}"), "a"),
    (re.compile(_ESCAPED + r"\\z"), "$"),
    (re.compile(_ESCAPED + r"\(\?<(?![=!])"), "(?P<"),
    (re.compile(_ESCAPED + r"\(\?[imsUuxR-]+:"), "(?:"),
    (re.compile(_ESCAPED + r"\(\?[imsUuxR-]+\)"), ""),
    (re.compile(_ESCAPED + r"[$^](?=[*+?{])"), "a"),
    (re.compile(_ESCAPED + r"([*+?]|\{\d+(?:,\d*)?\})(?:[*+?]|\{\d+(?:,\d*)?\})+"), r"\1"),
)
"""What Rust takes and Python does not, and something alike that Python takes."""


def fault(text: str) -> str:
    """Return why Rust's regex library would refuse an expression; "" where it takes it."""
    text = _HALF_BOUNDARY.sub(r"\1\\b", text)
    if (bytes_on := _BYTES.search(text)) and _NOT_UTF8.search(text, bytes_on.end()):
        return "without u it may match what is not UTF-8"
    if _PYTHON_ONLY.search(text):
        return "look-around and back references are not known"
    outside = re.sub(r"\[(?:\\.|[^\]\\])+\]", "", text)
    if _OPEN_BRACE.search(outside):
        return "a brace that is not a repetition must be escaped"
    for rust, python in _RUST_ONLY:
        text = rust.sub(python, text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sets that Python means to read otherwise some day
            re.compile(text)
    except (re.error, OverflowError) as error:
        return str(error)
    return ""
