import json
from functools import partial

import pytest
import yaml
from click.testing import CliRunner

from strata.cli.main import cli, run
from strata.fleet.discovery import collect, tools
from tests.fleet.discovery.tool_outputs import sample

CNMON_HANGS = tools.ToolFailed("cnmon: no answer within 10 s; it was killed")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return a function that makes this a machine whose tools say these things; it returns options."""

    def make(**outputs):
        def answer(command, **_limits):
            said = outputs.get(" ".join(command).replace("-", "_").replace(" ", "_"))
            if isinstance(said, Exception):
                raise said
            return said

        monkeypatch.setattr(collect, "collect", partial(real, run=answer, load_nvml=lambda: None))
        monkeypatch.setenv("NODE_NAME", "node-7")
        monkeypatch.setenv("COLUMNS", "80")
        return "--sys-root", str(tmp_path)

    real = collect.collect
    return make


@pytest.fixture
def npus(machine):
    hot = sample("npu_smi_24.1.rc1.txt").replace("102.0       40", "102.0       95")
    return machine(npu_smi_info=hot, npu_smi_info__t_topo=sample("npu_smi_topo.txt"), cnmon=CNMON_HANGS)


def once(*arguments):
    result = CliRunner().invoke(cli, ["kube", "agent", "--once", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_what_is_here_is_a_table_of_80_columns_with_notes_below(npus):
    text = once(*npus)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "node-7: npu-smi, driver 24.1.rc1"
    (hot,) = (line.split() for line in lines if "910B2C" in line)
    assert hot[-4:] == ["0.5", "npu-warning,", "hot", "-"]
    assert "links: hccs" in lines
    assert lines[-1] == "note: cnmon: no answer within 10 s; it was killed"


def test_json_and_yaml_hold_the_same(npus):
    data = json.loads(once("-o", "json", "--node", "other", *npus))
    assert data == yaml.safe_load(once("-o", "yaml", "--node", "other", *npus))
    assert data["node"] == "other"
    first = data["devices"][0]
    assert (first["vendor"], first["health"], first["memory_bytes"]) == ("Huawei", 1.0, 65536 * 2**20)
    assert first["acu_trust"]["fp16"] == "measured"
    assert data["links"][0] == {"a": 0, "b": 1, "kind": "hccs", "bytes_per_s": None}


def test_a_machine_without_devices_says_who_was_asked(machine):
    assert once(*machine()).splitlines() == [
        "node-7: no device",
        "none is found by NVML, nvidia-smi, npu-smi, cnmon, hy-smi or mthreads-gmi",
    ]


@pytest.mark.parametrize("option", ["--every", "--heartbeat", "--probe-every"])
@pytest.mark.parametrize("time", ["0s", "-1s", "10", "soon"])
def test_a_time_that_is_none_is_refused(option, time, capsys):
    assert run(["kube", "agent", "--once", f"{option}={time}"]) == 2
    assert f"Invalid value for '{option}'" in capsys.readouterr().err


def test_who_only_looks_once_serves_no_kubelet(capsys):
    assert run(["kube", "agent", "--once", "--dra"]) == 2
    assert "--dra serves the kubelet" in capsys.readouterr().err


@pytest.mark.real("lightkube")
def test_without_a_way_to_the_api_server_it_says_so(tmp_path, capsys):
    assert run(["kube", "agent", "--port", "0", "--kubeconfig", str(tmp_path / "none")]) == 2
    assert "none: no such kubeconfig" in capsys.readouterr().err
