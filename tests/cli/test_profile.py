"""`strata profile`: layer times of the device that is here, in the file that a job reads."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import pytest

from strata.cli.main import run
from strata.workload.huggingface import model as read_model
from strata.workload.profile import load_profile

CONFIG = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 128,
}  # fmt: skip
MIXTURE = CONFIG | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
QUICK = ("--sequence", "16", "--repeats", "5", "--device", "cpu")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.json").write_text(json.dumps(CONFIG))
    (tmp_path / "mixture.json").write_text(json.dumps(MIXTURE))
    return tmp_path


def test_without_torch_it_says_how_to_get_it_and_exits_5(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(["profile", "small.json"]) == 5
    told = capsys.readouterr().err
    assert "this command needs torch, which is not installed" in told
    assert "try: pip install" in told


@pytest.mark.parametrize("sizes", ["0", "a", "1,,2", "5000"])
def test_sizes_are_whole_numbers(folder, capsys, sizes):
    assert run(["profile", "small.json", "--microbatch", sizes]) == 2
    assert "for example 1,2,4" in capsys.readouterr().err


@pytest.fixture
def own_time(monkeypatch):
    """Layers are timed by what this thread computes, all of it, and not by what a busy machine makes it wait."""
    import torch

    from strata.workload import layer_timing

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(layer_timing, "time", SimpleNamespace(perf_counter=time.thread_time))
    yield
    torch.set_num_threads(threads)


@pytest.mark.real("torch")
@pytest.mark.parametrize("model", ["small.json", "mixture.json"])
def test_every_layer_has_times_that_a_job_reads(folder, capsys, own_time, model):
    assert run(["profile", model, *QUICK, "--microbatch", "1,2", "--save", "times.json", "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["accelerator"], data["trust"], data["sequence_length"]) == ("CPU", "measured", 16)
    profile = load_profile("times.json", num_layers=4)
    for size in (1, 2):
        times = profile.lookup("CPU", size, 1)
        assert times is not None
        assert times.forward_s.min() > 0
        assert times.forward_s[1] == times.forward_s[2]


LATENT = {
    "model_type": "deepseek_v3", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "vocab_size": 64, "q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 6, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
GATED = {
    "model_type": "afmoe", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "vocab_size": 64, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_dense_layers": 1, "sliding_window": None,
}  # fmt: skip


@pytest.mark.real("torch")
@pytest.mark.parametrize("keys", [LATENT, {**LATENT, "q_lora_rank": None}, GATED], ids=["mla", "direct", "gated"])
def test_latent_and_gated_attention_are_timed_with_the_matrices_of_the_model(folder, keys):
    from strata.workload import layer_timing

    (folder / "odd.json").write_text(json.dumps(keys))
    assert run(["profile", "odd.json", *QUICK, "--save", "times.json"]) == 0
    assert load_profile("times.json", num_layers=4).lookup("CPU", 1, 1).forward_s.min() > 0
    spec = read_model("odd.json")
    for kind in ("dense", "moe"):
        layer = layer_timing._layer(spec, kind, layer_timing.Shard())
        matrices = sum(each.numel() for each in layer.parameters() if each.dim() > 1)
        assert matrices == sum(product.params for product in spec.products(kind))


@pytest.mark.real("torch")
@pytest.mark.parametrize(
    "keys",
    [
        {**LATENT, "model_type": "deepseek_v32", "index_n_heads": 2, "index_head_dim": 8},
        {**LATENT, "model_type": "kimi_linear", "linear_head_dim": 8, "linear_num_heads": 4,
         "linear_conv_kernel_dim": 4},
    ],
    ids=["indexed", "linear"],
)  # fmt: skip
def test_what_is_not_timed_is_said_with_what_helps(folder, capsys, keys):
    (folder / "odd.json").write_text(json.dumps(keys))
    assert run(["profile", "odd.json", *QUICK]) == 2
    told = capsys.readouterr().err
    assert "odd: linear, indexed or uneven attention is not timed" in told
    assert "strata calibrate LOG" in told


@pytest.mark.real("torch")
@pytest.mark.long("two processes load torch")
def test_tensor_ranks_share_latent_heads(folder):
    (folder / "odd.json").write_text(json.dumps(LATENT))
    assert run(["profile", "odd.json", *QUICK, "--tensor", "2", "--save", "times.json"]) == 0


@pytest.mark.real("torch")
def test_a_neighbour_busy_for_some_rounds_of_a_small_layer_makes_no_contradiction(folder, monkeypatch):
    from strata.workload import layer_timing

    clocked, left = layer_timing._clocked, iter(range(30))

    def busy_at_first(device, work):
        _, result = clocked(device, work)  # a busy machine's own times do contradict each other now and then
        return 1e-3 * (30 if next(left, None) is not None else 1), result

    monkeypatch.setattr(layer_timing, "_clocked", busy_at_first)
    assert run(["profile", "small.json", *QUICK, "--microbatch", "1,2", "--save", "times.json"]) == 0


@pytest.mark.real("torch")
def test_a_second_run_adds_to_the_file(folder):
    for card in ("one", "two"):
        assert run(["profile", "small.json", *QUICK, "--accelerator", card, "--save", "times.json"]) == 0
    profile = load_profile("times.json", num_layers=4)
    assert {card for card, _, _ in profile.times} == {"one", "two"}


@pytest.mark.real("torch")
@pytest.mark.long("two processes load torch")
def test_tensor_ranks_share_a_layer(folder):
    assert run(["profile", "small.json", *QUICK, "--tensor", "2", "--save", "times.json"]) == 0
    assert load_profile("times.json", num_layers=4).lookup("CPU", 1, 2) is not None


@pytest.mark.real("torch")
def test_heads_that_do_not_divide_are_refused(folder, capsys):
    assert run(["profile", "small.json", *QUICK, "--tensor", "3"]) == 2
    told = capsys.readouterr().err
    assert "tensor parallel 3 does not divide the 4 attention heads and 2 key-value heads" in told


@pytest.mark.real("torch")
def test_more_tokens_than_a_model_has_positions_are_refused(folder, capsys):
    config = {"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 16, "vocab_size": 64}
    (folder / "old.json").write_text(json.dumps(config))
    assert run(["profile", "old.json", "--device", "cpu", "--sequence", "17"]) == 2
    assert "learned positions for 16 tokens only" in capsys.readouterr().err


@pytest.mark.real("torch")
def test_no_cuda_device_is_a_missing_part(folder, capsys):
    if pytest.importorskip("torch").cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    assert run(["profile", "small.json", "--device", "cuda"]) == 5
    assert "try: --device cpu" in capsys.readouterr().err
