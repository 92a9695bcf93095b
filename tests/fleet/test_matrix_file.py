"""The matrices of brief 001 §3.4.1: read as they stand, and refused with the place of what is wrong."""

import json

import numpy as np
import pytest

from strata.errors import BadFile
from strata.fleet.schema import load_drivers, load_dynamics, load_fleet
from strata.training.environment.network import matrices
from tests import ROOT

GBPS = 1e9 / 8
AS_IT_STANDS = ROOT / "examples/fleet-seed-matrix.json"


def written(tmp_path, **changes):
    """Return the file with changes: a value at `key`, or at `matrix[i][j]` where the name is a path."""
    data = json.loads(AS_IT_STANDS.read_text())
    for path, value in changes.items():
        *keys, last = [int(part) if part.isdigit() else part for part in path.split("__")]
        inner = data
        for key in keys:
            inner = inner[key]
        inner[last] = value
    file = tmp_path / "net.json"
    file.write_text(json.dumps(data))
    return file


def test_the_brief_s_own_file_is_a_fleet():
    fleet = load_fleet(AS_IT_STANDS)
    bandwidth, latency = matrices(fleet)
    np.testing.assert_allclose(bandwidth / GBPS, [[400, 5, 2], [5, 400, 3], [2, 3, 400]])
    np.testing.assert_allclose(latency * 1e3, [[0.5, 30, 80], [30, 0.5, 50], [80, 50, 0.5]])
    assert {domain.name: domain.num_devices for domain in fleet.domains} == {f"Domain_{i}": 8 for i in range(3)}
    assert load_dynamics(AS_IT_STANDS) is None
    assert load_drivers(AS_IT_STANDS) == {}


def test_a_matrix_need_not_be_symmetric_and_a_unit_of_its_own_is_text(tmp_path):
    fleet = load_fleet(written(tmp_path, bandwidth_matrix__0__1="2GB/s", latency_matrix__1__0="700us"))
    assert fleet.link("Domain_0", "Domain_1").bandwidth_bytes_per_s == 2e9
    assert fleet.link("Domain_1", "Domain_0").bandwidth_bytes_per_s == 5 * GBPS
    assert fleet.link("Domain_1", "Domain_0").latency_s == pytest.approx(700e-6)


@pytest.mark.parametrize(
    ("changes", "where", "said"),
    [
        ({"bandwidth_matrix__0__2": None}, "bandwidth_matrix.0.2", "has no bandwidth; every pair"),
        ({"latency_matrix__2__1": None}, "latency_matrix.2.1", "has no latency; every pair"),
        ({"bandwidth_matrix__1": [5, 400]}, "bandwidth_matrix.1", "missing: domain 1 to 2"),
        ({"latency_matrix__1": [5, 400, 3, 4]}, "latency_matrix.1", "has 4 values for num_domains 3"),
        ({"latency_matrix": [[0.5, 30, 80]]}, "latency_matrix", "has 1 rows for num_domains 3"),
        ({"bandwidth_matrix__1__0": "5ms"}, "bandwidth_matrix.1.0", "unit 'ms' in '5ms' is not one of bandwidth"),
        ({"latency_matrix__1__0": "5"}, "latency_matrix.1.0", "'5' has no unit"),
        ({"bandwidth_matrix__0__1": 5e9}, "bandwidth_matrix.0.1", "5e+09 is read as Gbps"),
        ({"latency_matrix__0__1": 30000.0}, "latency_matrix.0.1", "30000 is read as ms"),
        ({"bandwidth_matrix__2__0": float("nan")}, "bandwidth_matrix.2.0", "NaN is not a finite number"),
        ({"latency_matrix__2__0": float("inf")}, "latency_matrix.2.0", "Infinity is not a finite number"),
        ({"bandwidth_matrix__2__0": 0}, "bandwidth_matrix.2.0", "greater than 0"),
        ({"latency_matrix__2__0": -1}, "latency_matrix.2.0", "greater than or equal to 0"),
        ({"bandwidth_matrix__2__0": True}, "bandwidth_matrix.2.0", "True is not a quantity"),
        ({"num_domains": "three"}, "num_domains", "valid integer"),
        ({"topology": "flat"}, "topology", "'hierarchical'"),
        ({"bandwidth": 3}, "bandwidth", "did you mean 'bandwidth_matrix'?"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, changes, where, said):
    with pytest.raises(BadFile) as caught:
        load_fleet(written(tmp_path, **changes))
    (fault,) = caught.value.faults
    assert fault.where == where
    assert said in fault.message
    assert fault.line == 1
    assert fault.column > 1


def test_a_yaml_nan_and_all_faults_at_once(tmp_path):
    file = tmp_path / "net.yaml"
    file.write_text(
        "topology: hierarchical\nnum_domains: 2\nbandwidth_matrix:\n- [400, .nan]\n- [~, 400]\n"
        "latency_matrix: [[1, 2], 3]\n"
    )
    with pytest.raises(BadFile) as caught:
        load_fleet(file)
    assert [(fault.line, fault.where) for fault in caught.value.faults] == [
        (4, "bandwidth_matrix.0.1"),
        (5, "bandwidth_matrix.1.0"),
        (6, "latency_matrix.1"),
    ]
