"""Connections that are upgraded to frames, between real sockets."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from strata.net.frames import HEADER, FrameConnection, FrameError, connect
from strata.net.http import Frame, Limits, Realm, Upgraded
from strata.net.metrics import Counter, Registry
from strata.net.tls import client_context, server_context
from tests.net.test_tls import needs_openssl, pair
from tests.support.live_server import listening

__all__ = ["pair"]


def echo(*, token="", answer_s=600.0):
    """Return a server that sends frames back, and what it heard of ends."""
    ends = []

    async def upgrade(_request):
        connection = FrameConnection(
            lambda frame: connection.send(frame.kind, frame.number, frame.payload),
            ends.append,
            frame_bytes=1000,
            frame_s=60,
        )
        return Upgraded("echo", connection)

    counter = Counter("test_requests_total", "Answers.", ["code"], registry=Registry())
    app = Starlette(routes=[Route("/echo", upgrade)])
    return Frame(app, realms=(Realm("/", token),), limits=Limits(answer_s=answer_s), requests=counter), ends


class End:
    """A client's end."""

    def __init__(self):
        self.frames, self.lost = asyncio.Queue(), asyncio.get_running_loop().create_future()
        self.connection = FrameConnection(
            self.frames.put_nowait, self.lost.set_result, frame_bytes=1000, frame_s=60
        )

    async def open(self, port, *, headers=None, scheme="http", tls=None):
        url = f"{scheme}://127.0.0.1:{port}/echo"
        await connect(url, self.connection, protocol="echo", headers=headers or {}, connect_s=60, tls=tls)
        return self


def run(work):
    return asyncio.run(asyncio.wait_for(work, 120))


def test_frames_go_both_ways_in_their_order_and_outlive_the_limit_of_an_answer():
    async def scenario():
        frame, ends = echo(answer_s=0.2)
        async with listening(frame) as port:
            end = await End().open(port)
            await asyncio.sleep(0.5)
            for number in range(3):
                end.connection.send(7, number, b"ab", b"c" * number)
            back = [await end.frames.get() for _ in range(3)]
            await end.connection.ping()
            end.connection.close()
            while not ends:
                await asyncio.sleep(0.01)
            return back

    assert run(scenario()) == [(7, number, b"ab" + b"c" * number) for number in range(3)]


def test_a_frame_may_come_in_any_pieces():
    async def scenario():
        frame, _ = echo()
        async with listening(frame) as port:
            end = await End().open(port)
            for byte in HEADER.pack(3, 1, 4) + b"abcd":
                end.connection._transport.write(bytes((byte,)))
                await asyncio.sleep(0)
            return await end.frames.get()

    assert run(scenario()) == (3, 1, b"abcd")


@needs_openssl
def test_frames_go_over_tls(pair):
    async def scenario():
        frame, _ = echo(token="secret")
        bearer = {"authorization": "Bearer secret"}
        async with listening(frame, tls=server_context(*pair)) as port:
            end = await End().open(port, headers=bearer, scheme="https", tls=client_context(pair[0]))
            end.connection.send(1, 2, b"over tls")
            back = await end.frames.get()
            end.connection.close()
            with pytest.raises(FrameError, match="certificate verify failed"):
                await End().open(port, headers=bearer, scheme="https", tls=ssl.create_default_context())
            return back

    assert run(scenario()) == (1, 2, b"over tls")


def test_who_has_no_token_gets_no_frames():
    async def scenario():
        frame, _ = echo(token="secret")
        async with listening(frame) as port:
            with pytest.raises(FrameError, match=r"answered 401 Unauthorized .*bearer token"):
                await End().open(port)

    run(scenario())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "closed without an answer"),
        (b"HTTP/1.1 101 Switch", "closed without an answer"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "answered"),
        (b"x" * 70_000, "answered"),
    ],
)
def test_what_is_no_upgrade_is_refused(answer, words):
    async def scenario():
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            with pytest.raises(FrameError, match=words):
                await End().open(server.sockets[0].getsockname()[1])

    run(scenario())


def test_a_connection_that_ends_says_so_to_who_waits_for_an_answer():
    async def scenario():
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + HEADER.pack(9, 1, 1) + b"!")
            await reader.read(8)  # the ping
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            end = await End().open(server.sockets[0].getsockname()[1])
            early = await end.frames.get()  # which came with the head
            with pytest.raises(FrameError, match="the connection was closed"):
                await end.connection.ping()
            with pytest.raises(FrameError, match="the connection was closed"):
                await end.connection.ping()
            return early, await end.lost

    assert run(scenario()) == ((9, 1, b"!"), "the connection was closed")


class Scripted(asyncio.Transport):
    """A connection whose other end is the test."""

    def __init__(self):
        super().__init__()
        self.is_over, self.protocol = False, None

    def write(self, data):
        pass

    def set_protocol(self, protocol):
        self.protocol = protocol

    def is_closing(self):
        return self.is_over

    def abort(self):
        self.is_over = True


def opened(monkeypatch, play):
    """Connect; return the frames heard. play: what comes of the peer before anybody looks."""

    async def scenario():
        transport, end = Scripted(), End()

        async def create(factory, *_address, **_options):
            opening = factory()
            opening.connection_made(transport)
            play(opening, transport)
            return transport, opening

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", create)
        await end.open(1)
        return [end.frames.get_nowait() for _ in range(end.frames.qsize())]

    return run(scenario())


def test_frames_that_come_while_the_upgrade_is_being_read_are_heard(monkeypatch):
    def play(opening, _transport):
        opening.data_received(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        opening.data_received(HEADER.pack(9, 1, 1) + b"!")

    assert opened(monkeypatch, play) == [(9, 1, b"!")]


def test_a_connection_that_ends_while_the_upgrade_is_being_read_is_not_taken_for_open(monkeypatch):
    def play(opening, transport):
        opening.data_received(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        transport.abort()
        opening.connection_lost(None)

    with pytest.raises(FrameError, match="closed as soon as it was opened"):
        opened(monkeypatch, play)
