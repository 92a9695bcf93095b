"""vLLM behind the gateway: one process, and a pipeline of two that `strata export` wrote the scripts of."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from strata.serving.export import vllm
from tests.serving.engines.engines import MODEL, Front, find, model, python
from tests.serving.planning.plans import planned
from tests.support.ports import free_ports
from tests.support.real_processes import until

pytestmark = pytest.mark.real("engines")

PROMPT = "once upon a time there was a scheduler"
ONE_BY_ONE = ["-cc.mode=2", "-cc.backend=eager"]
"""No compiler: layers as they are, and yet a first pass through them, without which a later rank of a pipeline has
nowhere to put what it receives (vLLM 0.32 on a CPU, with --enforce-eager)."""
LONG = 400


def scripts(folder):
    """Write the scripts of a plan that gives the second node three of four layers."""
    plan = planned((("a/0", 1, 1), ("b/0", 1, 3)), model=MODEL)
    files = vllm.render(plan).files
    for name, text in files.items():
        (folder / name).write_text(text)
    return [folder / name for name in files if name.startswith("pipeline")]


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm")
    with Front(folder) as front:
        port, head, master = free_ports(3)
        weights = str(model("folder"))
        options = ["--dtype", "float32", *ONE_BY_ONE]
        command = python("-m", "vllm.entrypoints.cli.main", "serve", weights, "--served-model-name", MODEL)
        command += ["--port", str(port), "--host", "127.0.0.1", "--max-model-len", "1024", *options]
        alone = front.engine("alone", command, port)
        told = {
            "MODEL": weights, "HEAD_ADDR": "127.0.0.1", "PORT": str(head), "MASTER_PORT": str(master),
            "CONTEXT": "1024", "PATH": f"{find() / 'bin'}:/usr/bin:/bin",
        }  # fmt: skip
        ranks = [
            front.engine(script.stem, ["bash", str(script), *options], head, **told) for script in scripts(folder)
        ]
        front.engines, front.ranks = [alone, ranks[0]], ranks
        for engine in front.engines:
            engine.wait()
        front.open(*(engine.url for engine in front.engines))
        front.until_nodes(0, 1)
        yield front


def test_the_exported_pipeline_says_what_one_process_says(front):
    said = [engine.ask(prompt=PROMPT, max_tokens=60)["choices"][0]["text"] for engine in front.engines]
    assert said[0] == said[1]
    assert "PP rank 1" in front.ranks[1].log.read_text()


def test_its_memory_is_known_without_being_told(front):
    for number, engine in enumerate(front.engines):
        assert front.node(number)["kv_tokens"] == tokens_of(engine)
    assert front.node(0)["kv_tokens"] < front.node(1)["kv_tokens"]  # three layers a rank at most, not four


def tokens_of(engine):
    line = next(line for line in engine.page().splitlines() if line.startswith("vllm:cache_config_info{"))
    return int(line.partition('kv_cache_size_tokens="')[2].partition('"')[0])


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_an_answer_streamed_through_the_gateway_is_the_engines_own(front, path):
    said = {"prompt": PROMPT} if path == "completions" else {"messages": [{"role": "user", "content": PROMPT}]}
    choice = front.engines[0].ask(path, max_tokens=40, **said)["choices"][0]
    with front.stream(path, max_tokens=40, stream_options={"include_usage": True}, **said) as stream:
        text = stream.read()
    assert stream.is_done
    assert text == (choice.get("text") or choice["message"]["content"])
    assert stream.chunks[-1]["usage"]["completion_tokens"] == 40


def test_what_only_engines_can_do_is_passed_on(front):
    answer = front.ask(prompt=[PROMPT, "x"], max_tokens=5, allowed_token_ids=[70, 71])
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert len(set(answer["choices"][0]["text"])) <= 2


def test_an_engines_refusal_reaches_the_client_in_its_own_words(front):
    answer = front.client.post("/v1/completions", json={"model": MODEL, "prompt": "x" * 2000, "max_tokens": 5})
    assert answer.status_code == 400
    assert "maximum context length is 1024" in answer.json()["error"]["message"]


def test_a_client_that_leaves_frees_the_engine(front):
    with front.stream(prompt=PROMPT, max_tokens=980) as stream:
        stream.read(5)
        engine = front.engines[front.where(stream.id)[0]]
        assert engine.metric("vllm:num_requests_running") == 1
        before = engine.metric("vllm:generation_tokens_total")
    until(lambda: engine.metric("vllm:num_requests_running") == 0, lambda: "the engine to be idle", limit_s=60)
    assert engine.metric("vllm:generation_tokens_total") - before < 900


def test_what_begins_alike_goes_where_it_was_read_and_the_engines_cache_has_it(front):
    """The router's belief and vLLM's own count agree: all full blocks of the shared beginning are hits."""
    block = 128
    for begin in ("first", "second", "third"):
        shared = f"{begin} ".ljust(5 * block, "-")
        ids = [front.ask(prompt=shared, max_tokens=1)["id"]]
        (number,) = front.where(ids[0])
        hits = [engine.metric("vllm:prefix_cache_hits_total") for engine in front.engines]
        ids = [front.ask(prompt=f"{shared} and {ask}", max_tokens=1)["id"] for ask in ("one", "two", "three")]
        assert [front.where(name) for name in ids] == [[number]] * 3
        more = [engine.metric("vllm:prefix_cache_hits_total") for engine in front.engines]
        assert more[number] - hits[number] == 3 * 5 * block
        assert more[1 - number] == hits[1 - number]


@pytest.mark.full("minutes: engines start again, and one that lost a rank says nothing")
def test_answers_go_on_elsewhere_when_a_rank_of_the_pipeline_is_killed(front):
    """A completion as one text, a chat as an open message. The pipeline hangs then, and says that it is well."""
    chat = {"messages": [{"role": "user", "content": PROMPT}]}
    expected = [
        front.engines[0].ask(prompt=PROMPT, max_tokens=LONG)["choices"][0]["text"],
        front.engines[0].ask("chat/completions", max_tokens=LONG, **chat)["choices"][0]["message"]["content"],
    ]
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(front.engines[0].ask, prompt=["x", "y", "z"], max_tokens=1000)
        until(lambda: front.node(0)["others"] == 3, lambda: f"the load to be seen: {front.status()}")
        with (
            front.stream(prompt=PROMPT, max_tokens=LONG) as text,
            front.stream("chat/completions", max_tokens=LONG, **chat) as talk,
        ):
            for stream in (text, talk):
                stream.read(20)
            assert (front.where(text.id), front.where(talk.id)) == ([1], [1])
            front.ranks[1].kill()
            assert [text.read(), talk.read()] == expected
        busy.result()
    assert text.is_done
    assert talk.is_done
    assert (front.where(text.id), front.where(talk.id)) == ([1, 0], [1, 0])
