from __future__ import annotations

import csv
import io
import json
from xml.etree import ElementTree

import pytest

from strata.cli.main import run
from tests import ROOT, SHARED

HEADER = (
    "source,name,model,accelerator,num_gpus,gpus_per_node,node_network_gbps,precision,sequence,global_batch,"
    "microbatch,tp,pp,dp,ep,virtual_stages,recompute,zero,step_s"
)
GPT = "kind=gpt hidden=2304 layers=24 heads=24 kv_heads=24 ffn=9216 vocab=51200"
# Megatron-LM, arXiv 2104.04473, table 1, its first row; and the batch halved, which nobody published.
MEGATRON = f"Megatron21,GPT 1.7B,{GPT},A100-SXM4-80GB,32,8,1600,bf16,2048,512,,1,1,32,1,,full,0,3.528"
HALF = f"Megatron21,half,{GPT},A100-SXM4-80GB,32,8,1600,bf16,2048,256,,1,1,32,1,,full,0,"
# Korthikanti et al. 2022, arXiv 2205.05198, table 5: 175B, full recomputation.
KORTHIKANTI = (
    "Korth22,GPT 175B,kind=gpt hidden=12288 layers=96 heads=96 kv_heads=96 ffn=49152 vocab=51200,A100-SXM4-80GB,"
    "64,8,1600,bf16,2048,64,1,8,8,1,1,3,full,0,18.13"
)
OWN = ROOT / "benchmarks" / "published_runs.csv"
PUBLISHED = SHARED / "data" / "published_runs.csv"


@pytest.fixture
def answer(capsys, tmp_path):
    def answer(*lines: str, header: str = HEADER) -> dict:
        path = tmp_path / "runs.csv"
        path.write_text("\n".join((header, *lines)) + "\n")
        assert run(["bench", "published", str(path), "-o", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    return answer


@pytest.fixture
def refusal(capsys, tmp_path):
    def refusal(*lines: str, header: str = HEADER) -> str:
        path = tmp_path / "runs.csv"
        path.write_text("\n".join((header, *lines)) + "\n")
        assert run(["bench", "published", str(path)]) == 2
        return capsys.readouterr().err

    return refusal


def changed(line: str, **values: str) -> str:
    row = dict(zip(HEADER.split(","), line.split(","), strict=True)) | values
    return ",".join(row.values())


def at(column: str) -> int:
    before = MEGATRON.split(",")[: HEADER.split(",").index(column)]
    return len(",".join((*before, ""))) + 1


def test_every_row_is_predicted_and_held_against_what_was_published(answer):
    found = answer(MEGATRON, KORTHIKANTI, HALF)
    one, two, half = found["rows"]
    assert set(one) == {
        "row", "source", "name", "predicted_s", "measured_s", "error", "fits_memory", "memory_bytes",
    }  # fmt: skip
    assert 2e9 < one["memory_bytes"] < 80 * 2**30
    assert [row["row"] for row in found["rows"]] == [0, 1, 2]
    assert one["error"] == pytest.approx(one["predicted_s"] / 3.528 - 1)
    assert (half["measured_s"], half["error"]) == (None, None)
    assert found["means"]["Megatron21"] == {
        "error": pytest.approx(abs(one["error"])), "bias": pytest.approx(one["error"]), "rows": 1,
    }  # fmt: skip
    assert found["means"]["Korth22"]["rows"] == 1
    assert half["predicted_s"] < one["predicted_s"]
    assert one["fits_memory"]
    assert two["fits_memory"]


def test_rows_are_predicted_without_the_times(answer):
    rows = list(csv.DictReader(io.StringIO(f"{HEADER}\n{MEGATRON}\n{KORTHIKANTI}\n")))
    names = HEADER.split(",")[:-1]
    found = answer(*(",".join(row[name] for name in names) for row in rows), header=",".join(names))
    assert [row["error"] for row in found["rows"]] == [None, None]
    assert found["means"]["Megatron21"] == {"error": None, "bias": None, "rows": 0}
    assert found["pairs_ranked"] is None
    assert [row["predicted_s"] for row in found["rows"]] == [
        row["predicted_s"] for row in answer(MEGATRON, KORTHIKANTI)["rows"]
    ]


def test_what_was_not_published_is_chosen_no_slower_than_any_choice(answer):
    free, *given = answer(MEGATRON, *(changed(MEGATRON, microbatch=str(2**k)) for k in range(3)))["rows"]
    assert free["predicted_s"] <= min(row["predicted_s"] for row in given if row["fits_memory"])


def test_pairs_of_plans_of_one_job_are_ranked(answer):
    slow = answer(changed(KORTHIKANTI, virtual_stages="1"))["rows"][0]["predicted_s"]
    fast = answer(KORTHIKANTI)["rows"][0]["predicted_s"]
    assert slow > fast
    plans = (changed(KORTHIKANTI, step_s="18"), changed(KORTHIKANTI, virtual_stages="1", step_s="20"))
    assert answer(*plans)["pairs_ranked"] == 1.0
    assert answer(*reversed(plans))["pairs_ranked"] == 1.0


def test_two_times_of_one_layout_are_no_pair_of_plans(answer):
    assert answer(KORTHIKANTI, changed(KORTHIKANTI, step_s="20"))["pairs_ranked"] is None


@pytest.mark.parametrize(("older", "newer"), [("25.11", "25.11"), ("25.11", "26.04")])
def test_plans_are_a_pair_where_one_release_ran_both(answer, older, newer):
    first = changed(KORTHIKANTI, name=f"GPT {older}")
    second = changed(KORTHIKANTI, name="GPT", virtual_stages="1", step_s="17")  # ranked wrong
    told = answer(f"{first},", f"{second},{newer}", header=f"{HEADER},release")
    assert told["any_release"] == {"pairs": 1, "pairs_ranked": 0.0}
    assert (told["pairs"], told["pairs_ranked"]) == ((1, 0.0) if older == newer else (0, None))


def test_context_ranks_are_a_column_of_their_own(answer, refusal):
    header = HEADER.replace(",dp,", ",dp,cp,")

    def line(cp: int, dp: int) -> str:
        model = "meta-llama/Llama-3.1-8B"
        llama = changed(KORTHIKANTI, source="ZeRO", model=model, recompute="none", tp="4", pp="2", dp=f"{dp},{cp}")
        return llama.replace(",1,8,8,", ",1,4,2,")

    one, two = answer(line(1, 8), line(2, 4), header=header)["rows"]
    assert one["predicted_s"] < two["predicted_s"] < 2 * one["predicted_s"]
    assert "tp 4 x pp 2 x dp 8 x cp 2 is 128 GPUs, not 64" in refusal(line(2, 8), header=header)


def test_torchtitan_checkpoints_operations_where_a_row_says_nothing_of_it(answer):
    llama = {"model": "llama-3.1-8b", "microbatch": "2", "zero": "3"}
    plain, op, full = (
        changed(MEGATRON, **llama, source="", recompute=word) for word in ("none", "selective_op", "full")
    )
    none, some, all_, titan = answer(plain, op, full, changed(plain, source="torchtitan"))["rows"]
    assert none["predicted_s"] < some["predicted_s"] < all_["predicted_s"]
    assert titan["predicted_s"] == some["predicted_s"]


def test_torchtitan_ran_on_h100_of_slower_memory(answer):
    llama = {"model": "llama-3.1-8b", "accelerator": "H100-SXM5-80GB", "microbatch": "2", "zero": "3"}
    row = changed(MEGATRON, **llama, recompute="selective_op")
    titan, other = answer(*(changed(row, source=source) for source in ("torchtitan", "x")))["rows"]
    assert other["predicted_s"] < titan["predicted_s"] < other["predicted_s"] * 3.35 / 2.4


def test_megatron_lm_hid_sums_of_the_backward_from_2022_and_no_gradients_before_2024(answer):
    wide = changed(KORTHIKANTI, step_s="", num_gpus="128", dp="2", global_batch="128", recompute="none", zero="1")
    sources = ("Megatron21", "Korth22", "BLOOM", "MegaScale", "?")
    rows = answer(*(changed(wide, source=source) for source in sources))["rows"]
    older, korth, bloom, scale, plain = (row["predicted_s"] for row in rows)
    assert korth < older < bloom  # gradients in 32 bit
    assert scale < plain  # fused attention in both


def test_experts_that_a_row_does_not_spread_and_no_card_holds_are_spread_as_far_as_it_takes(answer):
    mixture = {"model": "qwen3-30b-a3b", "accelerator": "H100-SXM5-80GB", "microbatch": "1", "zero": "1"}
    row = changed(MEGATRON, **mixture)
    together, *apart = answer(row, *(changed(row, ep=str(2**k)) for k in range(1, 6)))["rows"]
    assert together["predicted_s"] in [one["predicted_s"] for one in apart]


@pytest.mark.parametrize("nothing", ["n/a", "-", "NaN"])
def test_what_other_tables_write_for_no_value_is_none(answer, nothing):
    gaps = changed(MEGATRON, ep=nothing, virtual_stages=nothing, recompute="full", step_s=nothing)
    one, two = answer(MEGATRON, gaps)["rows"]
    assert (two["predicted_s"], two["measured_s"]) == (one["predicted_s"], None)


def test_values_of_other_tables_are_read(answer):
    floats = changed(MEGATRON, global_batch="512.0", precision="amp_bf16")
    one, two = answer(MEGATRON, floats)["rows"]
    assert one["predicted_s"] == two["predicted_s"]


def test_a_model_is_also_a_bundled_name_or_the_keys_of_a_config(answer):
    keys = (
        "kind=config model_type=llama hidden_size=4096 intermediate_size=14336 num_hidden_layers=32 "
        "num_attention_heads=32 num_key_value_heads=8 vocab_size=128256 tie_word_embeddings=false"
    )
    named = changed(MEGATRON, model="llama-3.1-8b", accelerator="H100-SXM5-80GB", tp="2", dp="16")
    one, two = answer(named, changed(named, model=keys))["rows"]
    assert one["predicted_s"] == pytest.approx(two["predicted_s"], rel=1e-3)


def test_all_faults_of_a_table_are_told_with_their_places(refusal):
    told = refusal(
        changed(MEGATRON, num_gpus="64"),
        changed(MEGATRON, accelerator="H1000"),
        changed(MEGATRON, precision="fp8"),
        changed(MEGATRON, ep="8"),
        changed(MEGATRON, microbatch="0", step_s="-1"),
        changed(MEGATRON, model="kind=gpt hidden=2304"),
        changed(MEGATRON, model="kind=config model_type=llama hidden_size=64"),
    )
    for place, text in (
        (f"2:{at('num_gpus')}:", "tp 1 x pp 1 x dp 32 is 32 GPUs, not 64"),
        (f"3:{at('accelerator')}:", "no accelerator 'H1000'"),
        ("4:", "no fp8 rate is known of A100-SXM4-80GB"),
        ("5:", "1 experts are fewer than expert parallel 8"),
        ("6:", "'0' is not a whole number"),
        ("6:", "'-1' is not a positive number"),
        (f"7:{at('model')}:", "kind=gpt needs layers, heads, kv_heads, ffn, vocab"),
        (f"8:{at('model')}:", "num_hidden_layers"),
    ):
        assert any(f"runs.csv:{place}" in line and text in line for line in told.splitlines()), (place, text, told)
    assert "try:" in told


def test_rows_that_can_be_read_are_predicted_beside_those_that_cannot(capsys, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("\n".join((HEADER, changed(MEGATRON, tp="x"), KORTHIKANTI)) + "\n")
    assert run(["bench", "published", str(path), "-o", "json"]) == 2
    told = capsys.readouterr()
    assert [(row["row"], row["source"]) for row in json.loads(told.out)["rows"]] == [(1, "Korth22")]
    assert f"runs.csv:2:{at('tp')}:" in told.err


def test_8_bit_within_pytorch_has_its_attention_and_not_transformer_engines(answer):
    llama = {"model": "llama-3.1-8b", "accelerator": "H100-SXM5-80GB", "precision": "fp8", "sequence": "8192"}
    row = changed(MEGATRON, **llama, microbatch="1", zero="3")
    engine, plain, unknown = answer(*(changed(row, source=s) for s in ("Megatron-Core", "Mosaic", "?")))["rows"]
    assert engine["predicted_s"] == unknown["predicted_s"] < plain["predicted_s"]


@pytest.mark.parametrize(
    ("said", "drops"),
    [("token drop", True), ("tokens dropped", True), ("token-dropping", True), ("dropless", False),
     ("no token drop", False), ("without dropped tokens", False), ("drop-in", False)],
)  # fmt: skip
def test_a_note_that_says_tokens_are_dropped_leaves_out_what_sorting_them_takes(answer, said, drops):
    mixture = {
        "model": "qwen3-30b-a3b",
        "accelerator": "H100-SXM5-80GB",
        "microbatch": "1",
        "zero": "1",
        "ep": "8",
    }
    row = changed(MEGATRON, **mixture, source="Megatron-Core")
    kept, noted = answer(f"{row},", f"{row},{said}", header=f"{HEADER},note")["rows"]
    assert (noted["predicted_s"] < kept["predicted_s"]) is drops


TITAN = {
    "source": "torchtitan", "model": "llama-3.1-8b", "accelerator": "H100-SXM5-80GB", "sequence": "8192",
    "num_gpus": "64", "global_batch": "256", "microbatch": "2", "recompute": "none", "zero": "3", "step_s": "",
}  # fmt: skip


def test_a_row_of_torchtitan_says_whether_it_was_compiled_and_how_its_sums_ran(answer):
    flat, wide = (changed(MEGATRON, **TITAN, tp=t, dp=d) for t, d in (("1", "64"), ("8", "8")))
    names = [(flat, "FSDP"), (flat, "FSDP compile"), (wide, "2D"), (wide, "2D AsyncTP")]
    eager, compiled, shown, hidden = (
        row["predicted_s"] for row in answer(*(changed(line, name=name) for line, name in names))["rows"]
    )
    assert 1.1 < eager / compiled < 1.2
    assert 1.05 < shown / hidden < 1.3
    tensor, by_rows = answer(*(changed(wide, precision="fp8", name=name) for name in ("2D", "2D rowwise")))["rows"]
    assert tensor["predicted_s"] < by_rows["predicted_s"]


def test_a_pipeline_of_torchtitan_fetches_shards_once_a_step_and_has_as_many_microbatches_as_stages(answer):
    deep = changed(MEGATRON, **{**TITAN, "global_batch": "128"}, tp="1", pp="4", dp="16")
    given, free, whole = answer(
        deep, changed(deep, microbatch=""), changed(deep, source="?", microbatch="2"), header=HEADER
    )["rows"]
    assert given["predicted_s"] == free["predicted_s"]
    assert given["memory_bytes"] > 1.1 * whole["memory_bytes"]


def test_a_published_peak_is_held_against_the_memory_predicted(answer):
    row = f"{changed(MEGATRON, **TITAN, tp='1', dp='64')},50"
    found = answer(row, header=f"{HEADER},memory_gib")["rows"][0]
    assert found["memory_error"] == pytest.approx(found["memory_bytes"] / (50 * 2**30) - 1)
    assert "memory_error" not in answer(MEGATRON)["rows"][0]


QWEN = "Megatron-Core,Qwen3 30B FP8 {},qwen3-30b-a3b,{},8,8,3200,fp8,4096,512,4,1,1,8,8,1,none,1,"


def test_releases_of_megatron_core_sort_rows_apart_then_while_sending_them_then_launch_a_step_at_once(answer):
    rows = answer(*(QWEN.format(release, "B300") for release in ("25.09", "26.04", "26.06")))["rows"]
    apart, sending, at_once = (row["predicted_s"] for row in rows)
    assert apart > 1.5 * sending > 1.5 * at_once


def test_a_rack_of_gb200_is_one_node_whatever_its_trays_hold(answer):
    wide = changed(QWEN.format("26.04", "GB200"), num_gpus="64", dp="64", ep="64")
    trays = [changed(wide, gpus_per_node=count, node_network_gbps=f"{400 * int(count)}") for count in "48"]
    four, eight = (row["predicted_s"] for row in answer(*trays)["rows"])
    assert four == eight
    apart = changed(wide, accelerator="B200")
    assert answer(apart)["rows"][0]["predicted_s"] > 1.3 * four


def test_missing_columns_and_empty_tables_are_told(refusal):
    assert "no column 'tp'" in refusal(header=HEADER.replace(",tp,", ",tensor,"))
    assert "has no rows" in refusal()


def test_the_table_fits_80_columns(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "runs.csv"
    path.write_text(f"{HEADER}\n{MEGATRON}\n{KORTHIKANTI}\n{HALF}\n")
    assert run(["bench", "published", str(path)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_the_errors_are_also_a_picture(capsys, tmp_path):
    path, picture = tmp_path / "runs.csv", tmp_path / "errors.svg"
    path.write_text(f"{HEADER}\n{MEGATRON}\n{KORTHIKANTI}\n{HALF}\n")
    assert run(["bench", "published", str(path), "--svg", str(picture)]) == 0
    drawn = ElementTree.parse(picture).getroot()
    words = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Megatron21", "Korth22", "+15 %"} <= set(words)
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}g"))) == 2 + 2  # two runs with a time, two sources
    assert "copies alone" in capsys.readouterr().out


@pytest.mark.long("predicts every published run")
def test_the_published_runs_in_this_repository_are_predicted(capsys):
    """Rows of 16 bit on A100 and H100 were in no fit; others gave one constant for each card, or one for all."""
    assert run(["bench", "published", str(OWN), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = list(csv.DictReader(io.StringIO(OWN.read_text())))
    errors: dict[str, list[float]] = {"dense": [], "8 bit": [], "mixtures": []}
    for row, told in zip(rows, found["rows"], strict=True):
        kind = "mixtures" if int(row["ep"]) > 1 else "dense" if row["precision"] == "bf16" else "8 bit"
        errors[kind].append(told["error"])
    means = {kind: sum(map(abs, values)) / len(values) for kind, values in errors.items()}
    peaks = [row["memory_error"] for row in found["rows"] if "memory_error" in row]
    assert max(map(abs, peaks)) <= 0.15
    assert means["dense"] < 0.06
    assert abs(sum(errors["dense"]) / len(errors["dense"])) < 0.03
    assert means["8 bit"] < 0.10
    assert means["mixtures"] < 0.12


@pytest.mark.long("predicts a table of large plans")
@pytest.mark.skipif(not PUBLISHED.exists(), reason="no table of published runs here")
def test_published_runs_are_predicted(capsys):
    assert run(["bench", "published", str(PUBLISHED), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    graded = list(csv.DictReader(io.StringIO(PUBLISHED.read_text())))
    assert len(found["rows"]) == len(graded)
    dense = [
        row["error"]
        for row, grade in zip(found["rows"], graded, strict=True)
        if grade["grade"] == "read" and grade["precision"] == "bf16" and grade["ep"] == "1"
    ]
    assert sum(map(abs, dense)) / len(dense) < 0.10
    assert abs(sum(dense) / len(dense)) < 0.03
    mixtures = [row["error"] for row, grade in zip(found["rows"], graded, strict=True) if int(grade["ep"]) > 1]
    assert sum(map(abs, mixtures)) / len(mixtures) < 0.15
    assert max(map(abs, mixtures)) < 0.30
