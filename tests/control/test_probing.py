"""What is measured goes into the fleet file, and nothing else of it changes."""

import os
import shutil
import time

import pytest

from strata.cli.main import run
from strata.control.probing import measure, write_links
from strata.control.state import LinkSeen
from strata.decision import Trust
from strata.evaluation.testbed.namespaces import LinkShape, Namespaces
from strata.fleet.schema import load_fleet
from tests.control.running import NAMES, fleet_text

YAML = """\
# By hand.
apiVersion: strata/v1alpha1
kind: Fleet
name: here
links:  # as the carrier sells them
  # two of them
  - between: [a, b]
    bandwidth: 1Gbps
    rtt: 20ms
    price: 0.02USD/GB
  - {source: a, dest: c, bandwidth: 2Gbps, latency: 3ms}
domains:
  - {name: a, accelerator: A100-SXM4-80GB, num_gpus: 8}  # the first
  - {name: b, accelerator: A100-SXM4-80GB, num_gpus: 8}
  - {name: c, accelerator: A100-SXM4-80GB, num_gpus: 8}
"""


def test_only_the_directions_that_were_measured_change_and_the_rest_stands_as_it_was(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(YAML)
    before = load_fleet(path)
    write_links(path, [LinkSeen("a", "b", 0.0, 5e7, 0.004), LinkSeen("a", "c", 0.0, 0.0)])
    after = load_fleet(path)
    measured = after.links["a", "b"]
    assert (measured.bandwidth_bytes_per_s, measured.latency_s, measured.trust) == (5e7, 0.004, Trust.MEASURED)
    assert measured.price_usd_per_byte == before.links["a", "b"].price_usd_per_byte
    assert {pair: link for pair, link in after.links.items() if pair != ("a", "b")} == {
        pair: link for pair, link in before.links.items() if pair != ("a", "b")
    }
    text = path.read_text()
    assert text.startswith("# By hand.")
    assert "# the first" in text
    assert "measured_at: '1970-01-01T00:00:00Z'" in text


def test_a_file_of_json_stays_one(tmp_path):
    path = tmp_path / "fleet.json"
    path.write_text(fleet_text())
    write_links(path, [LinkSeen("west", "east", 0.0, 5e7)])
    after = load_fleet(path).links
    assert (after["west", "east"].bandwidth_bytes_per_s, after["east", "west"].bandwidth_bytes_per_s) == (5e7, 4e6)
    assert after["west", "east"].latency_s == 1e-3


def test_without_networks_there_is_nothing_to_measure(tmp_path, capsys):
    (tmp_path / "fleet.yaml").write_text(YAML)
    assert run(["fleet", "probe", str(tmp_path / "fleet.yaml")]) == 2
    assert "no link is between two domains that have a network" in capsys.readouterr().err


@pytest.mark.long("sends bytes over shaped links")
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="needs root, ip and tc")
def test_shaped_links_are_measured_as_they_are_shaped_though_the_file_says_otherwise(tmp_path):
    path = tmp_path / "fleet.json"
    with Namespaces(3, has_latency=False) as network:
        network.shape(LinkShape(2e6, 0.0))
        network.shape_links(LinkShape(5e5, 0.0), [(0, 1)])
        path.write_text(fleet_text(bandwidth="1GB/s", namespaces=network.names))
        seen = {(s.source, s.dest): s.bandwidth_bytes_per_s for s in measure(path, now=time.time)}
    slow = (NAMES[0], NAMES[1])
    assert len(seen) == 6
    assert seen.pop(slow) == pytest.approx(5e5, rel=0.25)
    assert list(seen.values()) == pytest.approx([2e6] * 5, rel=0.25)
