"""What httpx does over asyncio's own streams."""

from __future__ import annotations

import asyncio
import gc

import httpx
import pytest

from strata.serving.wire import node_client

NUM_IDLE = 6
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each request after a moment, and can close all connections."""

    def __init__(self, answer=OK):
        self.answer, self.writers, self.num_connections = answer, [], 0

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/"
        return self

    async def __aexit__(self, *_):
        self.close_connections()
        self.server.close()
        await self.server.wait_closed()

    async def serve(self, reader, writer):
        self.writers.append(writer)
        self.num_connections += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(0.02)
                writer.write(self.answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def close_connections(self):
        for writer in self.writers:
            writer.close()
        self.writers.clear()


def test_a_request_cancelled_while_connections_of_a_dead_peer_are_closed_leaves_none_open(recwarn):
    async def scenario():
        async with Server() as server, node_client("") as client:
            for num_turns in range(8):
                await asyncio.gather(*(client.get(server.url) for _ in range(NUM_IDLE)))
                server.close_connections()
                await asyncio.sleep(0.05)
                request = asyncio.create_task(client.get(server.url))
                for _ in range(num_turns):
                    await asyncio.sleep(0)
                request.cancel()
                await asyncio.wait([request])
                gc.collect()
        assert [str(warning.message) for warning in recwarn if "unclosed" in str(warning.message)] == []

    asyncio.run(scenario())


def test_an_idle_connection_is_used_again_unless_its_peer_has_closed_it():
    async def scenario():
        async with Server() as server, node_client("") as client:
            for _ in range(3):
                assert (await client.get(server.url)).text == "ok"
            assert server.num_connections == 1
            server.close_connections()
            await asyncio.sleep(0.05)
            assert (await client.get(server.url)).text == "ok"
            assert server.num_connections == 2

    asyncio.run(scenario())


def test_a_peer_that_is_silent_away_or_breaks_off_is_an_error_of_httpx():
    async def scenario():
        async with Server(b"") as server, node_client("") as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.get(server.url, timeout=0.1)
            request = asyncio.create_task(client.get(server.url))
            await asyncio.sleep(0.05)
            server.close_connections()
            with pytest.raises(httpx.RemoteProtocolError):
                await request
        with pytest.raises(httpx.ConnectError):
            await node_client("").get(server.url)

    asyncio.run(scenario())


def test_a_long_body_goes_out_whole_and_one_that_nobody_reads_times_out():
    async def scenario():
        received, no_more = bytearray(), asyncio.Event()

        async def serve(reader, writer):
            try:
                if received:
                    await no_more.wait()
                    return
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split()[0])
                received.extend(await reader.readexactly(length))
                writer.write(OK)
                await writer.drain()
            finally:
                writer.close()

        body = bytes(range(256)) * 80_000
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with server, node_client("") as client:
            assert (await client.post(url, content=body)).text == "ok"
            assert received == body
            with pytest.raises(httpx.WriteTimeout):
                await client.post(url, content=body, timeout=httpx.Timeout(10, write=0.2))
            no_more.set()

    asyncio.run(scenario())
