from __future__ import annotations

import csv
import io
import json
from xml.etree import ElementTree

import pytest

from strata.cli.main import run
from tests import SHARED

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
    assert set(one) == {"row", "source", "name", "predicted_s", "measured_s", "error", "fits_memory"}
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
