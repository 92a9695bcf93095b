"""A client whose address is wrong, or whose server dies amid an answer, gets an error of ours."""

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from strata.cli.main import run
from strata.control.client import Client
from strata.errors import MissingPart, UsageError
from strata.net.http import error_body
from strata.serving.gateway.client import GatewayClient

PAGE, JSON = b"<html>hello</html>", "application/json"
NOT_SERVED = error_body("there is nothing at /v1/jobs", kind="not_found_error", code="404")


@contextmanager
def another_server(body, kind=JSON, *, status=200):
    """Answer whatever is asked with one body, at an address of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            self.rfile.read(int(self.headers["content-length"] or 0))
            self.send_response(status)
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 names of the library

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("url", ["127.0.0.1", "localhost:8470", "file:///x", "http://127.0.0.1:abc", "http://a b"])
def test_what_is_no_address_is_bad_input(url):
    with pytest.raises(UsageError, match="is no address") as error:
        Client(url).jobs()
    assert error.value.hint == "http://HOST:PORT"


def test_a_server_that_dies_amid_an_answer_is_one_that_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def die():
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n99\r\nhalf")

        thread = threading.Thread(target=die)
        thread.start()
        with pytest.raises(MissingPart, match="no scheduler answers") as error:
            list(Client(f"http://127.0.0.1:{server.getsockname()[1]}").logs("a"))
        assert error.value.hint == "strata up FLEET"
        thread.join()


@pytest.mark.parametrize(
    ("status", "kind", "body", "shown"),
    [
        pytest.param(200, "text/html", PAGE, "text/html, HTTP status 200", id="a-page"),
        pytest.param(404, "text/html", PAGE, "text/html, HTTP status 404", id="no-such-page"),
        pytest.param(502, "text/html", PAGE, "text/html, HTTP status 502", id="a-proxy"),
        pytest.param(404, JSON, b'{"detail": "Not Found"}', "application/json, HTTP status 404", id="an-api"),
        pytest.param(404, JSON, NOT_SERVED, "'there is nothing at /v1/jobs'", id="another-server-of-ours"),
        pytest.param(200, JSON, b'{"status": "ok"}', "JSON of another form", id="an-object"),
        pytest.param(200, JSON, b'[{"id": 1}]', "JSON of another form", id="other-objects"),
        pytest.param(200, JSON, b"[1]", "JSON of another form", id="numbers"),
        pytest.param(200, JSON, b"null", "JSON of another form", id="null"),
    ],
)
def test_another_server_at_the_address_is_no_scheduler(status, kind, body, shown, capsys):
    with another_server(body, kind, status=status) as url:
        for command in (["jobs"], ["job", "a"], ["cancel", "a"], ["drain", "west"], ["drain", "west", "--undo"]):
            if body == b'{"status": "ok"}' and "--undo" in command:
                continue  # any object is an answer to that
            assert run([*command, "--server", url]) == 5, command
            said = capsys.readouterr()
            assert said.out == ""
            assert f"what is at {url} is no scheduler: it answers /v1/" in said.err
            assert said.err.endswith(f" with {shown}\ntry: --server URL, the address that strata up prints\n")
        assert run(["jobs", "--server", url, "-o", "json"]) == 5
        said = capsys.readouterr()
        assert said.out == ""
        assert json.loads(said.err)["error"]["message"].endswith(f" with {shown}")
        with pytest.raises(MissingPart, match="no gateway") as error:
            GatewayClient(url).requests()
        assert error.value.hint == "--gateway URL, the address that strata serve gateway prints"


def test_a_page_is_no_log_and_no_events():
    with another_server(PAGE, "text/html") as url:
        for stream in (Client(url).logs("a"), Client(url).events()):
            with pytest.raises(MissingPart, match=r"is no scheduler.*text/html"):
                list(stream)


def test_a_job_is_not_submitted_to_another_server():
    with another_server(b'{"status": "ok"}') as url, pytest.raises(MissingPart, match="JSON of another form"):
        Client(url).submit({})


def test_what_a_server_of_another_kind_says_is_shown_in_a_line():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                connection.recv(65_536)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(MissingPart, match=r"no scheduler answers.*OpenSSH_9.2$") as error:
            Client(f"http://127.0.0.1:{server.getsockname()[1]}").jobs()
        assert error.value.hint == Client.address
        thread.join()


def test_https_where_http_is_spoken_is_a_wrong_address():
    with another_server(b"[]") as url:
        with pytest.raises(MissingPart, match="no scheduler answers at https") as error:
            Client(url.replace("http:", "https:")).jobs()
        assert error.value.hint == Client.address


@pytest.mark.parametrize("name", ["", "a/b"])
def test_what_no_job_is_called_is_not_taken_for_another_server(name, capsys):
    for command in (["job"], ["cancel"], ["logs"]):
        assert run([*command, name, "--server", "http://127.0.0.1:1"]) == 2
        assert capsys.readouterr().err == f"error: there is no job {name!r}\ntry: strata jobs\n"
