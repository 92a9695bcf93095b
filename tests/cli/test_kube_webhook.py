from __future__ import annotations

import pytest

from strata.cli.main import run


@pytest.mark.real("lightkube", "cryptography")
def test_a_folder_without_a_certificate_is_named_before_anything_is_asked(tmp_path, capsys):
    assert run(["kube", "webhook", "--cert-dir", str(tmp_path)]) == 2
    assert "tls.crt" in capsys.readouterr().err


@pytest.mark.real("lightkube", "cryptography")
def test_without_a_cluster_it_says_what_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    assert run(["kube", "webhook", "--port", "0"]) == 5
    assert "try: --kubeconfig FILE" in capsys.readouterr().err
