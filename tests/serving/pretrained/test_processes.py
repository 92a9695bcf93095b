"""A gateway and workers of real weights as processes: what clients get is what transformers generates."""

import json
import signal

import pytest

from strata.cli.main import run
from tests.serving.pretrained import folders
from tests.serving.worker.live_workers import Live
from tests.serving.worker.processes import Processes
from tests.support.real_processes import LIMIT_S, until

pytestmark = pytest.mark.real("torch", "transformers")

LONG = 200
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "once", "upon", "a", "time"]


class Model:
    """A folder, and what transformers makes of it."""

    def __init__(self, folder):
        from strata.serving.pretrained.folder import read_folder

        self.folder, self.hosted = folder, read_folder(folder).hosted
        self.tokenizer = folders.tokenizer()
        prompts = [" ".join(WORDS[i : i + 4]) for i in range(len(WORDS) - 3)]
        # A model of random weights may end after any token.
        self.prompt = next(prompt for prompt in prompts if self._lasts(prompt, LONG))
        self.word = next(word for word in WORDS if self._lasts(f"<|user|>{word}</s><|assistant|>", 24, chat=True))

    def _lasts(self, text, count, *, chat=False):
        tokens = self.tokenizer(text, add_special_tokens=not chat)["input_ids"]
        return len(folders.generated(self.folder, tokens, count)) == count

    def said(self, prompt, count):
        """Return the text after a prompt, which is text or tokens."""
        tokens = self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        said = folders.generated(self.folder, tokens, count)
        assert len(said) == count, "this model ends here"
        whole, before = (self.tokenizer.decode(part, skip_special_tokens=True) for part in (tokens + said, tokens))
        return whole[len(before) :]


@pytest.fixture(scope="module", params=["mistral", "qwen3-moe"])
def model(request, tmp_path_factory):
    return Model(folders.make(request.param, tmp_path_factory.mktemp("folders")))


@pytest.fixture(scope="module")
def live(model, tmp_path_factory):
    # What the larger of two workers would need for weights alone: it takes three.
    weights = model.hosted.weight_bytes
    memory_bytes = min(max(weights(0, cut), weights(cut, 5)) for cut in range(1, 5))
    with Processes(tmp_path_factory.mktemp("processes")) as processes:
        yield Live(
            processes,
            model=model.hosted.name,
            memory=f"{memory_bytes}B",
            options=("--model", str(model.folder)),
        )


def test_three_processes_say_what_transformers_generates(live, model):
    assert live.ask(model.prompt, max_tokens=LONG)[1] == model.said(model.prompt, LONG)


def test_a_chat_goes_through_the_models_template(live, model):
    answer = live.post(
        "chat/completions", messages=[{"role": "user", "content": model.word}], max_tokens=24
    ).json()
    prompt = model.tokenizer(f"<|user|>{model.word}</s><|assistant|>", add_special_tokens=False)["input_ids"]
    assert answer["choices"][0]["message"]["content"] == model.said(prompt, 24)
    assert answer["usage"]["prompt_tokens"] == len(prompt)


def test_a_stop_text_ends_the_answer_before_it(live, model):
    whole = model.said(model.prompt, 60)
    stop = whole[20:24]
    answer = live.post("completions", prompt=model.prompt, max_tokens=60, stop=stop).json()["choices"][0]
    assert (answer["text"], answer["finish_reason"]) == (whole[: whole.index(stop)], "stop")


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("chat/completions", {"messages": [{"role": "tool", "content": "42"}]}, "no tools here"),
        ("completions", {"prompt": [5, 384]}, "tokens must be below 384"),
        ("completions", {"prompt": "fox " * 300, "max_tokens": 8}, "exceed the limit of 256"),
    ],
)
def test_what_the_model_cannot_do_is_refused_in_words(live, path, fields, words):
    answer = live.post(path, **fields)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_what_a_worker_has_cached_goes_to_others_which_say_what_it_would_have_said(live, model):
    """Three times by the same workers, as other attempts: what one has cached is the next one's."""
    prompt = model.tokenizer(model.prompt)["input_ids"]
    is_windowed = model.folder.name == "mistral"  # whose window of 12 tokens is full before anything moves
    expected = folders.generated(model.folder, prompt, 60)
    url, first = live.order(prompt=prompt, max_tokens=LONG)  # or it is over before it is interrupted
    said, attempt, message = [], 1, first
    for count in (20, 45, 60):
        with live.client.stream("POST", f"{url}/generate", json=message) as answer:
            for line in map(json.loads, answer.iter_lines()):
                if "token" not in line:
                    break
                said.append(line["token"])
                if len(said) == count:
                    kept = {"request_id": message["request_id"], "attempt": attempt, "is_kept": True}
                    live.client.post(f"{url}/abort", json=kept)
                    break
        if is_windowed and attempt == 2:
            assert "tokens are cached in room for 12" in line["error"]
            assert "node_id" not in line
            return
        assert len(said) == count, line
        gone, attempt = message["stages"], attempt + 1
        kept = {"attempt": attempt - 1, "tokens": len(prompt) + len(said) - 1, "stages": gone}
        message = first | {"attempt": attempt, "generated": said, "kept": kept}
    assert said == expected
    until(live.is_free, lambda: "free memory")


def test_a_worker_of_other_weights_is_refused(live, model, tmp_path):
    other = folders.make(model.folder.name, tmp_path)
    shard = sorted(other.glob("*.safetensors"))[-1]
    raw = bytearray(shard.read_bytes())
    raw[-4:] = b"\0\0\0\0"
    shard.write_bytes(raw)
    told = ("--gateway", live.gateway.address, "--id", "x", "--model", str(other))
    refused = live.processes.start("worker", *told)
    assert refused.popen.wait(LIMIT_S) == 2
    assert "error: the gateway refuses x: 409 other-model: x hosts a different model" in refused.log
    assert "try: the gateway's --model" in refused.log


def test_a_text_goes_on_elsewhere_when_a_worker_is_killed(live, model):
    expected = model.said(model.prompt, LONG)
    with live.streaming(model.prompt, max_tokens=LONG) as (request_id, text):
        assert "n1" in live.route(request_id)
        live.workers.pop("n1").end(signal.SIGKILL)
        live.add("whole", memory="64MB")
        assert text() == expected
    assert live.attempts(request_id) > 1
    until(live.is_free, lambda: "free memory")


def test_a_text_goes_on_elsewhere_when_a_worker_leaves_and_how_is_told(live, model):
    expected = model.said(model.prompt, LONG)
    with live.streaming(model.prompt, max_tokens=LONG) as (request_id, text):
        gone = live.workers.pop(live.route(request_id)[0])
        live.add("other", memory="64MB")
        assert gone.end() == 0, gone.log
        assert text() == expected
    timeline = live.client.get(f"{live.gateway.address}/decisions/{request_id}").json()["timeline"]
    chosen = [entry["handover"]["chosen"] for entry in timeline if "handover" in entry]
    assert chosen in (["move"], ["recompute"]) if live.attempts(request_id) > 1 else not chosen
    until(live.is_free, lambda: "free memory")


@pytest.mark.parametrize("command", ["gateway", "worker"])
def test_a_folder_that_cannot_be_served_ends_the_command(command, tmp_path, capsys):
    folder = folders.make("llama", tmp_path)
    told = ["serve", command, *(["--gateway", "http://127.0.0.1:9", "--id", "a"] if command == "worker" else [])]
    next(folder.glob("*.safetensors")).unlink()
    assert run([*told, "--model", str(folder)]) == 2
    shown = capsys.readouterr().err
    assert "model.safetensors.index.json names it, and it is not here" in shown
    assert "try: fetch the folder again" in shown
    assert run([*told, "--model", str(folder), "--seed", "0"]) == 2
    assert "--seed is of the made-up model, and --model names another" in capsys.readouterr().err
