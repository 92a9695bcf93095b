import pytest

from tests.control.running import Service


@pytest.fixture
def service(tmp_path):
    """A scheduler that runs, on three plain domains."""
    service = Service(tmp_path)
    service.up()
    yield service
    service.down()
