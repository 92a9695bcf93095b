"""What a gateway serves now, and what became of its requests: the pages over a real gateway of made-up workers."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

pytest.importorskip("starlette")

from strata.cli.main import run
from strata.control.client import Client
from strata.serving.gateway.client import GatewayClient
from strata.web.sources import Sources
from tests.web.gateways import record
from tests.web.test_pages import NOBODY, Site, is_safe


@dataclass(frozen=True)
class Recorded(GatewayClient):
    """A gateway as it answered before it went down."""

    url: str = "http://gateway"
    answers: tuple[tuple[str, object], ...] = ()

    def json(self, method, path, body=None):
        return dict(self.answers)[path]


@pytest.fixture(scope="module")
def gateway() -> Recorded:
    return Recorded(answers=tuple(record().items()))


@pytest.fixture
def site(gateway, tmp_path) -> Site:
    return Site(Sources(tmp_path / "none.db", Client(NOBODY), gateway=gateway))


def newest(gateway) -> str:
    return dict(gateway.answers)["/decisions"][0]["request_id"]


def test_the_gateway_lists_its_requests_newest_first(gateway):
    listed = dict(gateway.answers)["/decisions"]
    assert [one["timeline"][-1]["tokens"] for one in listed] == [6, 8, 4]
    assert {one["model"] for one in listed} == {"tiny"}


def test_nodes_pipelines_and_requests_are_shown(site, gateway):
    answer = site.ask("/serving")
    assert answer.status_code == 200
    assert is_safe(answer.text)
    assert "tiny at http://gateway" in answer.text
    assert "0 requests wait, 0 run." in answer.text
    assert f'href="/serving/requests/{newest(gateway)}"' in answer.text
    assert site.ask("/serving/now").text in answer.text


def test_a_node_without_layers_is_not_shown_as_full(gateway, tmp_path):
    answers = dict(gateway.answers)
    status = json.loads(json.dumps(answers["/status"]))
    [model] = status.values()
    model["nodes"].append({"id": "idle", "running": 0, "others": 0, "slots": 0, "kv_tokens": 0, "load": 1.0})
    idle = Recorded(answers=(*(answers | {"/status": status}).items(),))
    shown = Site(Sources(tmp_path / "none.db", Client(NOBODY), gateway=idle)).ask("/serving").text
    assert "<td>idle</td><td>0</td><td>0</td><td>0</td><td>-</td>" in shown


def test_a_request_is_shown_with_where_it_went_and_what_that_was_chosen_over(site, gateway):
    answer = site.ask(f"/serving/requests/{newest(gateway)}")
    assert answer.status_code == 200
    assert is_safe(answer.text)
    assert "Foreseen (analytic)" in answer.text
    assert "with 6 tokens, the first after 800ms" in answer.text
    picture = site.ask(f"/serving/requests/{newest(gateway)}/waterfall.svg")
    assert picture.headers["content-type"].startswith("image/svg+xml")


def test_a_gateway_that_does_not_answer_is_said_to(tmp_path):
    site = Site(Sources(tmp_path / "none.db", Client(NOBODY), gateway=GatewayClient(NOBODY)))
    answer = site.ask("/serving")
    assert answer.status_code == 200
    assert "no gateway answers at http://127.0.0.1:1" in answer.text
    assert "strata serve gateway" in answer.text


def test_without_a_gateway_a_request_is_not_found(tmp_path):
    site = Site(Sources(tmp_path / "none.db", Client(NOBODY)))
    answer = site.ask("/serving/requests/cmpl-1")
    assert answer.status_code == 404
    assert "try: --gateway URL, of strata ui or strata up" in answer.text


def test_without_a_gateway_the_page_says_how_both_commands_are_given_one(tmp_path):
    shown = Site(Sources(tmp_path / "none.db", Client(NOBODY))).ask("/serving").text
    assert "<code>strata ui --gateway URL</code>" in shown
    assert "<code>strata up FLEET --gateway URL</code>" in shown


@pytest.mark.parametrize("command", ["ui", "up"])
def test_a_token_that_opens_no_gateway_is_misuse(command, tmp_path, capsys):
    (tmp_path / "token").write_text("secret")
    assert run([command, "seed", "--port", "0", "--gateway-token-file", str(tmp_path / "token")]) == 2
    assert "try: --gateway URL" in capsys.readouterr().err
