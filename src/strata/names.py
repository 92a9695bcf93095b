"""Names that people mistype: the closest of those there are, and the words for an error message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def closest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the one of `known` that was probably meant, in whatever case, None where none is close.

    cutoff: the least similarity, 0 to 1 (`difflib.SequenceMatcher.ratio`).
    """
    import difflib  # not at the top: `strata --help` mistypes nothing

    names = {each.casefold(): each for each in known}
    return next(map(names.get, difflib.get_close_matches(name.casefold(), names, n=1, cutoff=cutoff)), None)


def first_of(names: Sequence[str], most: int) -> str:
    """Return names in a sentence: `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)`, or "" where nothing is close."""
    close = closest(name, known)
    return f" (did you mean {close!r}?)" if close else ""
