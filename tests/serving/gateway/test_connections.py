"""Connections to engines over real sockets, byte for byte."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.gateway.connections import PIECE_BYTES, Chunks, EngineConnections
from tests.support.laws import examples

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\nX-Odd: a:b\r\n\r\n"


class Server:
    """Answers the next request with the next of its answers, in pieces; None closes the connection instead."""

    def __init__(self, *answers):
        self.answers, self.heads, self.bodies, self.num_connections = list(answers), [], [], 0
        self.goes_on = asyncio.Event()
        self.num_written, self.is_over, self._before = 0, False, -1

    def is_moving(self):
        """Return whether more has been written since the last call."""
        before, self._before = self._before, self.num_written
        return before != self.num_written

    async def __call__(self, reader, writer):
        self.num_connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                self.bodies.append(await reader.readexactly(length))
                for piece in self.answers.pop(0):
                    if piece is None:
                        return
                    if piece is ...:
                        await self.goes_on.wait()
                        continue
                    writer.write(piece)
                    await writer.drain()
                    self.num_written += 1
                    await asyncio.sleep(0.001)
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client has gone
        finally:
            self.is_over = True
            writer.close()


@asynccontextmanager
async def serving(server):
    listener = await asyncio.start_server(server, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()


def within(silence_s):
    """Wait so long for each piece."""
    return lambda since_s, gap_s: since_s + silence_s


async def asked(connections, url, *, silence_s=60.0):
    pieces = []
    async with connections.stream(
        f"{url}/v1/x", '{"é": 1}'.encode(), connect_s=60.0, due_s=within(silence_s)
    ) as answer:
        await answer.hand(lambda piece: pieces.append(piece) or True)
    return answer.status_code, b"".join(pieces)


def answered(*answers, times=1, **more):
    """Return what comes of so many requests in a row (errors by their kind), and the server."""

    async def scenario():
        server, connections, outcomes = Server(*answers), EngineConnections("secret"), []
        async with serving(server) as url:
            for _ in range(times):
                try:
                    outcomes.append(await asked(connections, url, **more))
                except httpx.HTTPError as error:
                    outcomes.append(type(error))
            await connections.aclose()
        return outcomes, server

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("pieces", "outcome"),
    [
        ([CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"], (200, b"hello")),
        (
            [CHUNKED, b"5;odd=1\r\nhel", b"lo\r", b"\nA\r\n", b"0123456789\r\n0\r\n", b"X-Sum: 1\r\n\r\n"],
            (200, b"hello0123456789"),
        ),
        ([OK + b"Content-Length: 5\r\n\r\nhe", b"llo"], (200, b"hello")),
        ([OK + b"Content-Length: 0\r\n\r\n"], (200, b"")),
        ([OK + b"\r\nhe", b"llo", None], (200, b"hello")),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nhi"], (200, b"hi")),
        ([b"HTTP/1.0 503 no\r\nContent-Length: 2\r\n\r\nhi"], (503, b"hi")),
        ([CHUNKED + b"5\r\nhel", None], httpx.RemoteProtocolError),
        ([CHUNKED + b"x\r\nhello\r\n"], httpx.RemoteProtocolError),
        ([CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n"], httpx.RemoteProtocolError),
        ([OK + b"Content-Length: 5\r\n\r\nhe", None], httpx.RemoteProtocolError),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], httpx.RemoteProtocolError),
        ([b"x" * (PIECE_BYTES + 10), b"y", ...], httpx.RemoteProtocolError),
        ([None], httpx.ReadError),
    ],
)
def test_whatever_an_engine_sends_is_the_body_it_means_or_an_error(pieces, outcome):
    outcomes, server = answered(pieces)
    assert outcomes == [outcome]
    assert server.heads[0].startswith(b"POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Authorization: Bearer secret\r\n" in server.heads[0]
    assert server.bodies == ['{"é": 1}'.encode()]


@examples(60)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.lists(st.integers(0, 400), max_size=12))
def test_chunks_are_the_same_wherever_they_are_cut(parts, cuts):
    whole = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    borders = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    chunks, out = Chunks(), b""
    for start, end in pairwise(borders):
        assert not chunks.is_whole
        out += chunks.feed(whole[start:end])
    assert (out, chunks.is_whole) == (b"".join(parts), True)


def test_a_connection_is_used_again_while_it_is_good():
    answer = [CHUNKED + b"2\r\nhi\r\n0\r\n\r\n"]
    outcomes, server = answered(answer, answer, answer, times=3)
    assert outcomes == [(200, b"hi")] * 3
    assert server.num_connections == 1
    last = [OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi"]
    assert answered(last, last, times=2)[1].num_connections == 2


def test_one_that_was_closed_meanwhile_is_replaced_unseen():
    answer = [OK + b"Content-Length: 2\r\n\r\nhi"]
    outcomes, server = answered(answer, [None], answer, times=2)
    assert outcomes == [(200, b"hi")] * 2
    assert server.num_connections == 2


def test_silence_ends_a_wait_before_the_first_byte_and_after_it():
    assert answered([...], silence_s=0.05)[0] == [httpx.ReadTimeout]
    assert answered([CHUNKED + b"2\r\nhi\r\n", ...], silence_s=0.05)[0] == [httpx.ReadTimeout]


def test_nobody_there_is_an_error_of_the_connection():
    async def scenario():
        async with serving(Server()) as url:
            pass
        with pytest.raises(httpx.ConnectError):
            await asked(EngineConnections(), url)

    asyncio.run(scenario())


def test_a_reader_that_stops_closes_the_connection_and_one_that_is_slow_holds_the_engine_back():
    async def scenario():
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        server, connections = Server([CHUNKED, *([piece] * 2000), b"0\r\n\r\n"]), EngineConnections()
        async with serving(server) as url:
            async with connections.stream(f"{url}/", b"{}", connect_s=60.0, due_s=within(60.0)) as answer:
                await answer.hand(lambda piece: False)
                while server.num_written < 2 or server.is_moving():
                    await asyncio.sleep(0.01)
            while not server.is_over:
                await asyncio.sleep(0.001)
            return server.num_written

    assert asyncio.run(scenario()) < 1000


def test_a_client_that_is_slow_is_not_the_engine_s_silence():
    async def scenario():
        pieces = []
        server, connections = Server([CHUNKED + b"2\r\nhi\r\n", b"2\r\nho\r\n0\r\n\r\n"]), EngineConnections()
        async with (
            serving(server) as url,
            connections.stream(url, b"{}", connect_s=60.0, due_s=within(0.2)) as answer,
        ):
            await answer.hand(lambda piece: pieces.append(piece))
            await asyncio.sleep(0.5)
            while not answer.is_whole:
                await answer.hand(lambda piece: pieces.append(piece))
        await connections.aclose()
        return b"".join(pieces)

    assert asyncio.run(scenario()) == b"hiho"


def test_what_takes_the_pieces_may_raise_and_its_connection_is_not_used_again():
    def take(piece):
        raise ValueError("odd")

    async def scenario():
        answer = [CHUNKED + b"2\r\nhi\r\n0\r\n\r\n"]
        server, connections = Server(answer, answer), EngineConnections()
        async with serving(server) as url:
            with pytest.raises(ValueError, match="odd"):
                async with connections.stream(url, b"{}", connect_s=60.0, due_s=within(60.0)) as one:
                    await one.hand(take)
            outcome = await asked(connections, url)
            await connections.aclose()
        return outcome, server.num_connections

    assert asyncio.run(scenario()) == ((200, b"hi"), 2)


@pytest.mark.parametrize("head", [b"", b"Content-Length: 4\r\n"])
def test_what_came_before_the_connection_closed_is_all_there_however_late_it_is_taken(head):
    async def scenario():
        pieces = []
        server, connections = Server([OK + head + b"\r\nhiho", None]), EngineConnections()
        async with (
            serving(server) as url,
            connections.stream(url, b"{}", connect_s=60.0, due_s=within(60.0)) as answer,
        ):
            while not server.is_over:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)  # the end of the connection is here as well
            while not answer.is_whole:
                await answer.hand(lambda piece: pieces.append(piece) or True)
        return b"".join(pieces)

    assert asyncio.run(scenario()) == b"hiho"
