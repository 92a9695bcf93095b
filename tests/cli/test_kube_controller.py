"""`strata kube controller`: what it says before there is a cluster to speak to."""

from __future__ import annotations

import pytest

from strata.cli.main import run


@pytest.mark.real("lightkube")
@pytest.mark.parametrize("content", [None, "clusters: ["])
def test_without_a_way_to_the_api_server_it_says_so_and_names_no_port(tmp_path, capsys, content):
    config = tmp_path / "config"
    if content is not None:
        config.write_text(content)
    code = run(["kube", "controller", "--host", "127.0.0.1", "--port", "0", "--kubeconfig", str(config)])
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert "kubeconfig" in err
