from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from strata.errors import UsageError
from strata.net.connection import Connection
from strata.net.http import Frame, Limits, Realm
from strata.net.metrics import Counter, Registry
from strata.net.server import listen
from tests.support.live_server import listening

ALL = (Realm("/"),)


def frame_of(endpoint, *, realms=ALL, **limits) -> Frame:
    app = Starlette(routes=[Route("/{rest:path}", endpoint, methods=["GET", "POST"])])
    requests = Counter("requests_total", "R.", ["code"], registry=Registry())
    return Frame(app, realms=realms, limits=Limits(**limits), requests=requests)


def counts(frame: Frame) -> dict[str, float]:
    (family,) = frame.requests.collect()
    return {sample.labels["code"]: sample.value for sample in family.samples}


async def echo(request):
    return PlainTextResponse(await request.body())


def client_of(frame) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(frame), base_url="http://test")


def ask(frame, *args, **kwargs) -> httpx.Response:
    async def one():
        async with client_of(frame) as client:
            return await client.request(*args, **kwargs)

    return asyncio.run(one())


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_stream_that_is_open_when_the_server_stops_ends_without_a_traceback():
    async def forever(request):
        async def words():
            while True:
                yield "x"
                await asyncio.sleep(3600)

        return StreamingResponse(words())

    async def stopped(is_draining: bool) -> None:
        frame = frame_of(forever)
        scope = {"type": "http", "method": "GET", "path": "/x", "headers": [], "query_string": b"", "state": {}}
        sent = asyncio.Event()

        async def receive():
            await asyncio.sleep(3600)

        async def send(message):
            if message.get("body"):
                sent.set()

        running = asyncio.create_task(frame(scope, receive, send))
        await sent.wait()
        if is_draining:
            frame.drain()
        running.cancel()
        await running

    asyncio.run(stopped(is_draining=True))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stopped(is_draining=False))


def test_a_request_within_its_limits_passes_and_is_counted():
    frame = frame_of(echo)
    assert ask(frame, "POST", "/x", content=b"hello").text == "hello"
    assert counts(frame) == {"200": 1.0}


def test_the_longest_realm_says_which_token_opens_a_path():
    frame = frame_of(echo, realms=(Realm("/", "a"), Realm("/nodes/", "b"), Realm("/open", "")))
    for path, token, status in (
        ("/x", None, 401),
        ("/x", "a", 200),
        ("/x", "b", 401),
        ("/nodes/x", "a", 401),
        ("/nodes/x", "b", 200),
        ("/open", None, 200),
    ):
        headers = {"authorization": f"Bearer {token}"} if token else {}
        assert ask(frame, "GET", path, headers=headers).status_code == status, (path, token)
    assert ask(frame, "GET", "/x").headers["www-authenticate"] == "Bearer"


def test_a_body_that_is_announced_too_large_is_refused():
    frame = frame_of(echo, body_bytes=10)
    assert code_of(ask(frame, "POST", "/", content=b"x" * 11)) == (413, "body-too-large")


def test_a_body_that_turns_out_too_large_is_refused_though_the_framework_would_say_500():
    async def chunks():
        for _ in range(4):
            yield b"xxxx"

    frame = frame_of(echo, body_bytes=10)
    assert code_of(ask(frame, "POST", "/", content=chunks())) == (413, "body-too-large")


def test_headers_beyond_the_limit_are_refused():
    frame = frame_of(echo, header_bytes=1000)
    assert code_of(ask(frame, "GET", "/", headers={"x-long": "x" * 1000})) == (431, "headers-too-large")


def test_an_answer_that_does_not_begin_in_time_is_504_and_its_work_is_cancelled():
    cancelled = []

    async def never(_request):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    assert code_of(ask(frame_of(never, answer_s=0.01), "GET", "/")) == (504, "answer-too-late")
    assert cancelled == [True]


def test_an_answer_that_has_begun_may_take_its_time():
    async def slow(_request):
        begun = asyncio.Event()

        async def body():
            yield b"a"
            asyncio.get_running_loop().call_later(0.6, begun.set)
            await begun.wait()
            yield b"b"

        return StreamingResponse(body())

    assert ask(frame_of(slow, answer_s=0.5), "GET", "/").text == "ab"


def test_a_bug_in_the_application_is_one_500_and_one_traceback(caplog):
    async def bug(_request):
        raise KeyError("oops")

    frame = frame_of(bug)
    assert ask(frame, "GET", "/").status_code == 500
    assert [record.exc_info is not None for record in caplog.records] == [True]
    assert counts(frame) == {"500": 1.0}


def test_requests_beyond_the_limit_are_told_to_come_again():
    async def scenario():
        inside, leave = asyncio.Event(), asyncio.Event()

        async def wait(_request):
            inside.set()
            await leave.wait()
            return PlainTextResponse("done")

        frame = frame_of(wait, connections=1)
        async with client_of(frame) as client:
            first = asyncio.create_task(client.get("/"))
            await inside.wait()
            second = await client.get("/")
            leave.set()
            return await first, second

    first, second = asyncio.run(scenario())
    assert first.status_code == 200
    assert code_of(second) == (503, "too-many-connections")
    assert second.headers["retry-after"] == "1"


def test_a_frame_that_drains_takes_no_new_request_but_finishes_and_says_when():
    async def scenario():
        inside, leave = asyncio.Event(), asyncio.Event()

        async def wait(_request):
            inside.set()
            await leave.wait()
            return PlainTextResponse("done")

        frame = frame_of(wait, realms=(Realm("/"), Realm("/healthz", drains=False)))
        async with client_of(frame) as client:
            running = asyncio.create_task(client.get("/"))
            await inside.wait()
            frame.drain()
            refused = await client.get("/")
            idle = asyncio.create_task(frame.idle())
            await asyncio.sleep(0)
            assert not idle.done()
            leave.set()
            health = await client.get("/healthz")
            await idle
            return await running, refused, health

    running, refused, health = asyncio.run(scenario())
    assert (running.status_code, health.status_code) == (200, 200)
    assert code_of(refused) == (503, "draining")
    assert "retry-after" in refused.headers


async def raw(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        return await reader.read()
    finally:
        writer.close()


def test_who_does_not_finish_its_head_in_time_is_hung_up_on():
    async def scenario():
        async with listening(frame_of(echo, head_s=0.05)) as port:
            return await raw(port, b""), await raw(port, b"GET / HTTP/1.1\r\nhost: x\r\n")

    assert asyncio.run(scenario()) == (b"", b"")


def test_a_second_request_on_a_connection_has_no_more_time_for_its_head():
    async def scenario():
        async with listening(frame_of(echo, head_s=0.5)) as port:
            return await raw(port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\n")

    assert asyncio.run(scenario()).count(b"200 OK") == 1


def test_a_body_that_does_not_come_is_408():
    async def scenario():
        async with listening(frame_of(echo, body_s=0.05)) as port:
            return await raw(port, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nab")

    answer = asyncio.run(scenario())
    assert b" 408 " in answer
    assert b"body-too-slow" in answer


def test_who_sends_a_head_without_end_is_hung_up_on():
    async def scenario():
        async with listening(frame_of(echo, header_bytes=1000)) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n")
            with suppress(ConnectionError):
                for _ in range(10_000):
                    writer.write(b"x-more: " + b"x" * 100 + b"\r\n")
                    await writer.drain()
                    await asyncio.sleep(0)
                    if writer.transport.is_closing():
                        break
            return writer.transport.is_closing()

    assert asyncio.run(scenario())


@pytest.mark.parametrize("content_length", [True, False])
def test_a_client_of_http_1_0_gets_an_answer_that_ends_with_the_connection(content_length):
    async def words(_request):
        async def body():
            yield b"a"
            yield b"b"

        return StreamingResponse(body(), headers={"content-length": "2"} if content_length else {})

    async def scenario():
        async with listening(frame_of(words)) as port:
            return await raw(port, b"GET / HTTP/1.0\r\n\r\n")

    head, _, body = asyncio.run(scenario()).partition(b"\r\n\r\n")
    assert (body, b"chunked" in head) == (b"ab", False)


def test_an_answer_that_is_there_at_once_reaches_the_connection_as_one_piece(monkeypatch):
    written = []

    def made(self, transport):
        write = transport.write
        monkeypatch.setattr(transport, "write", lambda data: (written.append(bytes(data)), write(data)))
        connection_made(self, transport)

    connection_made = Connection.connection_made
    monkeypatch.setattr(Connection, "connection_made", made)

    async def scenario():
        async with listening(frame_of(echo)) as port:
            return await raw(
                port, b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi"
            )

    assert written == [asyncio.run(scenario())]


OFFERS = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 1\r\n\r\na"
LAST = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 1\r\n\r\nb"


@pytest.mark.parametrize("pause_s", [None, 0.05])
def test_who_offers_an_upgrade_that_is_not_taken_may_go_on_asking(pause_s):
    async def scenario():
        async with listening(frame_of(echo)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(OFFERS)
            if pause_s is not None:
                await writer.drain()
                await asyncio.sleep(pause_s)
            writer.write(LAST)
            answer = await reader.read()
            writer.close()
            return answer

    answers = asyncio.run(scenario()).split(b"HTTP/1.1 200 OK")[1:]
    assert [answer[-1:] for answer in answers] == [b"a", b"b"]


UPGRADE = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\r\n"


@pytest.mark.parametrize(("sent", "status"), [(b"\x16\x03\x01\r\n\r\n", b"400"), (UPGRADE, b"200")])
def test_whoever_does_not_speak_http_does_not_fill_the_log(sent, status, caplog):
    async def scenario():
        async with listening(frame_of(echo)) as port:
            return await raw(port, sent)

    assert asyncio.run(scenario()).split()[1] == status
    assert caplog.text == ""


def test_the_client_hears_that_its_huge_body_was_refused():
    async def scenario():
        async with listening(frame_of(echo, body_bytes=2**16)) as port, httpx.AsyncClient(timeout=300) as client:
            return await client.post(f"http://127.0.0.1:{port}/", content=b"x" * 2**18)

    assert code_of(asyncio.run(scenario())) == (413, "body-too-large")


def test_a_client_that_stops_reading_is_cut_off_and_the_work_for_it_ends():
    async def scenario():
        ended = asyncio.Event()

        async def endless(scope, receive, send):
            if scope["type"] != "http":
                return
            try:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                while True:
                    await send({"type": "http.response.body", "body": b"x" * 2**16, "more_body": True})
            finally:
                ended.set()

        frame = frame_of(echo, stall_s=0.05)
        frame.app = endless
        async with listening(frame) as port:
            # A socket of our own that never reads; an asyncio stream would read ahead.
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                async with asyncio.timeout(120):
                    await ended.wait()
                    await frame.idle()

    asyncio.run(scenario())


def test_an_address_in_use_is_a_user_error():
    said = r"cannot listen on 127.0.0.1:\d+: Address already in use$"
    with listen("127.0.0.1", 0) as taken, pytest.raises(UsageError, match=said):
        listen("127.0.0.1", taken.getsockname()[1])


SERVER = """
import asyncio, sys
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.responses import PlainTextResponse
from strata.net.connection import Connection
from strata.net.http import Frame, Limits, Realm
from strata.net.metrics import Counter, Registry
from strata.net.server import listen, serve

async def wait(request):
    print("inside", flush=True)
    if sys.argv[1] == "hang":
        await asyncio.Event().wait()
    await asyncio.to_thread(sys.stdin.readline)
    return PlainTextResponse("done")

app = Starlette(routes=[Route("/", wait)])
counter = Counter("c", "C.", ["code"], registry=Registry())
frame = Frame(app, realms=[Realm("/")], limits=Limits(), requests=counter)
listener = listen("127.0.0.1", 0)
print(listener.getsockname()[1], flush=True)
serve(frame, listener, drain_s=float(sys.argv[2]))
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("work", "drain_s", "answer"), [("end", "30", b"done"), ("hang", "0.1", b"")])
def test_a_signal_lets_requests_finish_within_the_deadline_and_exits_with_0(number, work, drain_s, answer):
    command = [sys.executable, "-c", SERVER, work, drain_s]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as server:
        port = int(server.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=300) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert server.stdout.readline() == b"inside\n"
            os.kill(server.pid, number)
            server.stdin.write(b"go on\n")
            server.stdin.flush()
            received = b""
            while data := client.recv(4096):
                received += data
        assert received.endswith(answer)
        assert server.wait(timeout=300) == 0
        assert (server.stdout.read(), server.stderr.read()) == (b"ended\n", b"")


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_pieces_that_are_written_at_once_are_part_of_the_answer_in_their_order(version):
    outcomes = []

    async def app(scope, receive, send):
        await receive()
        write = scope["state"]["write"]
        assert write(b"too early") is False
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(4):
            piece = b"%d" % number
            outcomes.append(number % 2 and write(piece))
            if not outcomes[-1]:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        assert write(b"") is False
        await send({"type": "http.response.body", "body": b"end"})

    async def scenario():
        requests = Counter("requests_total", "R.", ["code"], registry=Registry())
        frame = Frame(lifespan_of(app), realms=ALL, limits=Limits(), requests=requests)
        async with listening(frame) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET / HTTP/{version}\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            return answer

    body = asyncio.run(scenario()).partition(b"\r\n\r\n")[2]
    if version == "1.1":
        assert body == b"1\r\n0\r\n1\r\n1\r\n1\r\n2\r\n1\r\n3\r\n3\r\nend\r\n0\r\n\r\n"
    else:
        assert body == b"0123end"
    assert [bool(one) for one in outcomes] == [False, version == "1.1"] * 2


@pytest.mark.parametrize("size", [1, 300_000])
@pytest.mark.parametrize("is_late", [False, True])
def test_who_listens_for_the_end_of_a_connection_hears_of_it_also_when_it_has_come(size, is_late):
    async def app(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        has_body.set()
        if is_late:
            await left.wait()
            while (await receive())["type"] != "http.disconnect":
                pass
        scope["state"]["listen"](gone.set)
        await asyncio.wait_for(gone.wait(), 300)

    async def scenario():
        requests = Counter("requests_total", "R.", ["code"], registry=Registry())
        frame = Frame(lifespan_of(app), realms=ALL, limits=Limits(), requests=requests)
        async with listening(frame) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size)
            await asyncio.wait_for(has_body.wait(), 300)
            writer.close()
            left.set()
            await asyncio.wait_for(gone.wait(), 300)

    has_body, left, gone = (asyncio.Event() for _ in range(3))
    asyncio.run(scenario())


def test_nothing_is_written_past_a_client_that_does_not_read():
    async def app(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while scope["state"]["write"](b"x" * 2**20):
            await asyncio.sleep(0)
        refused.set()

    async def scenario():
        requests = Counter("requests_total", "R.", ["code"], registry=Registry())
        frame = Frame(lifespan_of(app), realms=ALL, limits=Limits(), requests=requests)
        async with listening(frame) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**10)
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await asyncio.wait_for(refused.wait(), 300)
            writer.transport.abort()

    refused = asyncio.Event()
    asyncio.run(scenario())


def lifespan_of(app):
    """An application whose lifespan is nothing."""

    async def whole(scope, receive, send):
        if scope["type"] == "http":
            await app(scope, receive, send)
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    return whole
