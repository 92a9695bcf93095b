"""Sentences with figures in them: as tables write them, and in the singular where there is one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter
from typing import Any, Final

from strata.units import show_count, show_time

_VERBS: Final = {"are": "is", "have": "has", "were": "was"} | {
    verb: f"{verb}s" for verb in ("fit", "hold", "remain", "stay")
}
_COUNT: Final = re.compile(
    r"(?<!of )\{(\w+)(?::,)?\} (attempt|binding|byte|device|domain|event|group|job|layer|line|node|option|pair"
    r"|pipeline|plan|pod|rank|request|sample|sequence|step|thread|time|token)s\b"
    rf"(?: ({'|'.join(_VERBS)})\b)?"
)
"""What sentences count, and the verb behind it; of a part (`{free} of {total} devices`) many are counted."""


class _Figures(Formatter):
    """Has figures also as tables write them: `{rate:count}` and `{took_s:time}`; `.3g` made 2e+03 of 2000."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        show = {"count": show_count, "time": show_time}.get(format_spec)
        return show(value) if show else super().format_field(value, format_spec)


def filled(sentence: str, data: Mapping[str, Any]) -> str:
    """Return a sentence with its figures: `{num} nodes are free` is `1 node is free` where there is one."""

    def counted(match: re.Match[str]) -> str:
        field, noun, verb = match.groups()
        if str(data[field]) != "1":
            return match[0]
        return f"1 {noun} {_VERBS[verb]}" if verb else f"1 {noun}"

    return _Figures().vformat(_COUNT.sub(counted, sentence), (), data)
