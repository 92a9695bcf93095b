"""What an engine's silence means: how long its streams ever paused while it worked, and what it may be reading.

An engine that lives and does no work (a rank of its pipeline has died, a kernel hangs) goes on to answer health
checks: that none of its streams moves is all there is to see.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 1 / 6
"""Of the longest silence there may be, what is given at least once a stream has begun (assumed)."""
TIMES: Final = 20
"""So many times the longest pause of that stream before (assumed)."""
READING_TIMES: Final = 5
"""So many times what reading so many tokens takes in the mean, which holds up those that are written (assumed)."""

Attempt = tuple[str, int]
"""A request's id, and which of its attempts."""


class Pace:
    """One engine. silence_s: longest wait for a piece of a stream, whatever the engine may be doing.

    heard_s: when the last piece of any stream came.
    """

    def __init__(self, silence_s: float) -> None:
        self.silence_s, self.heard_s = silence_s, 0.0
        self._unread = dict[Attempt, tuple[float, int]]()
        self._read_s, self._read_tokens = 0.0, 0

    def sent(self, attempt: Attempt, tokens: int, now_s: float) -> None:
        """Note a prompt that the engine has to read."""
        self._unread[attempt] = now_s, tokens

    def is_unread(self, attempt: Attempt) -> bool:
        """Return whether nothing of an answer has come yet."""
        return attempt in self._unread

    def read(self, attempt: Attempt, now_s: float) -> None:
        """Note that the first of an answer is there."""
        sent_s, tokens = self._unread.pop(attempt)
        self._read_s += now_s - sent_s
        self._read_tokens += tokens

    def gone(self, attempt: Attempt) -> None:
        """Forget an attempt that has ended."""
        self._unread.pop(attempt, None)

    def due_s(self, attempt: Attempt, since_s: float, gap_s: float) -> float:
        """Return until when to wait for an attempt's next piece.

        since_s: its last one, or when the wait began; gap_s: its longest pause so far. A stream that waits while
        others move is one that the engine has put off.
        """
        whole_s = since_s + self.silence_s
        if attempt in self._unread:
            return whole_s
        heard_s = max(since_s, self.heard_s)
        # What came later came to an engine that had stopped already.
        unread = sum(tokens for sent_s, tokens in self._unread.values() if sent_s <= heard_s + gap_s)
        reading_s = READING_TIMES * unread * self._read_s / max(self._read_tokens, 1)
        return min(whole_s, heard_s + max(SHARE * self.silence_s, TIMES * gap_s) + reading_s)
