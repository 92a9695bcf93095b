from __future__ import annotations

from click.testing import CliRunner

from strata.cli.main import cli
from strata.slicing import build


def test_the_library_is_put_where_pods_mount_it_from(tmp_path, monkeypatch):
    brought = tmp_path / "brought.so"
    brought.write_bytes(b"the library")
    monkeypatch.setattr(build, "brought", lambda: brought)
    result = CliRunner().invoke(cli, ["kube", "library", str(tmp_path / "host")])
    assert (result.exit_code, result.stdout) == (0, "")
    assert (tmp_path / "host" / build.NAME).read_bytes() == b"the library"


def test_a_folder_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    brought = tmp_path / "brought.so"
    brought.write_bytes(b"the library")
    monkeypatch.setattr(build, "brought", lambda: brought)
    result = CliRunner().invoke(cli, ["kube", "library", str(brought / "host")])
    assert result.exit_code != 0
    assert "cannot be written" in str(result.exception)
    assert result.exception.hint == "another path: a part of this one is a file, not a folder"
