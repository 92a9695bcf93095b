"""Where the text of a trace goes: a file, compressed if its name says so, there only once it is whole."""

from __future__ import annotations

import gzip
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, Final, cast

from strata.errors import UsageError, help_with
from strata.host.trace.read import LOST

LEVEL: Final = 1
"""Of gzip: a storm's 40 MB of text a second shrink to a tenth at less CPU than perf needs to print them."""
CHUNK: Final = 2**20


class Sink:
    """Takes text in pieces; `lost` counts the events that its lines say were lost, `seen` is given whole lines."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._left = b""
        self.lost = 0
        self.seen: Callable[[bytes], None] = lambda lines: None
        self.num_bytes = 0

    def write(self, piece: bytes) -> None:
        """Append a piece, which may end in the middle of a line."""
        self.num_bytes += len(piece)
        self._stream.write(piece)
        whole, newline, rest = (self._left + piece).rpartition(b"\n")
        self._left = rest[-CHUNK:]
        if newline:
            self.seen(whole)
            self.lost += sum(int(a or b or 1) for a, b in LOST.findall(whole))

    def copy(self, source: IO[bytes]) -> None:
        """Append all that a stream has."""
        while piece := source.read(CHUNK):
            self.write(piece)


@contextmanager
def sink(path: Path) -> Iterator[Sink]:
    """Yield a sink; its file replaces the old one at the end, and is gone where anything goes wrong."""
    temporary = path.with_name(f".strata-{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = temporary.open("xb")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}", hint=help_with(error)) from None
    try:
        with stream:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=LEVEL, filename="", mtime=0) as packed:
                    yield Sink(cast("BinaryIO", packed))
            else:
                yield Sink(stream)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}", hint=help_with(error)) from None
    finally:
        temporary.unlink(missing_ok=True)
