"""A client whose address is wrong, or whose server dies amid an answer, gets an error of ours."""

import socket
import threading

import pytest

from strata.control.client import Client
from strata.errors import MissingPart, UsageError


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
        with pytest.raises(MissingPart, match="no scheduler answers"):
            list(Client(f"http://127.0.0.1:{server.getsockname()[1]}").logs("a"))
        thread.join()
