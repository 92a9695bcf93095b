"""An object of the API server as a document, so that the checks of files serve it as well."""

from __future__ import annotations

from strata.cluster.api.kinds import Object, name_of, namespace_of
from strata.errors import Fault
from strata.files import Document, Path_


class ObjectDocument(Document):
    """Faults name the object as `Kind/namespace/name`, and fields as Kubernetes does: `status.devices[0].uuid`."""

    def __init__(self, obj: Object) -> None:
        parts = (str(obj.get("kind", "object")), namespace_of(obj), name_of(obj))
        super().__init__("/".join(filter(None, parts)), obj, {})

    def fault(self, where: Path_, message: str) -> Fault:
        """Return a fault at a field."""
        field = "".join(f"[{part}]" if isinstance(part, int) else f".{_shown(part)}" for part in where)
        return Fault(self.path, message, where=field.removeprefix("."))


def _shown(key: str) -> str:
    """Return a key of a user's, which must not end a line of a log."""
    return (key if key.isprintable() else ascii(key)[1:-1])[:80]
