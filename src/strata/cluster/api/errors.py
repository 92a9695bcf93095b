"""How the API server fails, and what is worth doing about it."""

from __future__ import annotations

from typing import Final

from strata.errors import StrataError

_RIGHTS: Final = "kubectl auth can-i --list: what this user may; then another user, or a role with the verb"


class ApiFailed(StrataError):
    """The API server refused, or could not be asked. `status`: of HTTP, 0 where there was no answer."""

    exit_code = 5

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, hint=_RIGHTS if status == 403 else None)
        self.status, self.reason, self.retry_after_s = status, reason, retry_after_s

    @property
    def is_conflict(self) -> bool:
        """Whether somebody else wrote meanwhile (409): look again, then decide again."""
        return self.status == 409

    @property
    def is_forbidden(self) -> bool:
        """Whether it is for lack of rights (403)."""
        return self.status == 403

    @property
    def is_gone(self) -> bool:
        """Whether a watch's past is forgotten (410): list again."""
        return self.status == 410

    @property
    def may_pass(self) -> bool:
        """Whether it may succeed later: no answer, too many requests, or trouble of the server's own."""
        return self.status == 0 or self.status == 429 or self.status >= 500
