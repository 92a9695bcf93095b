"""A model's folder, read without torch: here its files are written by hand."""

import json
import shutil

import pytest

from strata.errors import BadFile, UsageError
from strata.serving.pretrained.folder import read_folder

CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 32,
    "max_position_embeddings": 128,
    "dtype": "bfloat16",
    "eos_token_id": 2,
}
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
TENSORS = {"model.embed_tokens.weight": SHARDS[0], "model.norm.weight": SHARDS[1], "lm_head.weight": SHARDS[1]}


def write_shard(path, names, *, fill=7):
    header = {
        name: {"dtype": "BF16", "shape": [32, 16], "data_offsets": [i * 1024, (i + 1) * 1024]}
        for i, name in enumerate(names)
    }
    raw = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes([fill]) * (1024 * len(names)))


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "small"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG))
    (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": TENSORS}))
    (made / "tokenizer.json").write_text("{}")
    for shard in SHARDS:
        write_shard(made / shard, [name for name, of in TENSORS.items() if of == shard])
    return made


def configure(folder, **changes):
    data = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(data))


def test_what_planners_and_workers_need_is_read(folder):
    read = read_folder(folder)
    assert (read.hosted.name, read.hosted.num_layers, read.hosted.max_positions) == ("small", 2, 128)
    assert (read.hosted.vocab_size, read.dtype, read.stop_tokens) == (32, "bfloat16", (2,))
    assert {name: stored.file.name for name, stored in read.tensors.items()} == TENSORS
    assert read.hosted.kv_bytes(0, 2, tokens=10) == 10 * 2 * 2 * 2 * 4 * 2
    block = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24 + 2 * 16
    assert read.hosted.weight_bytes(0, 1) == 2 * (block + 32 * 16)
    assert read.hosted.weight_bytes(0, 2) == 2 * (2 * block + 2 * 32 * 16 + 16)
    assert read.hosted.info.hidden_bytes == 4 * 16  # as they travel


def test_a_single_file_needs_no_index(folder):
    (folder / "model.safetensors.index.json").unlink()
    write_shard(folder / "model.safetensors", TENSORS)
    assert set(read_folder(folder).tensors) == set(TENSORS)


def test_where_answers_end_is_what_generate_reads(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    assert read_folder(folder).stop_tokens == (2, 5)


def test_copies_have_one_digest_and_all_else_another(folder, tmp_path):
    known = {"it": read_folder(folder).hosted.fingerprint}
    copy = shutil.copytree(folder, tmp_path / "copy")
    configure(copy, transformers_version="1.2.3")
    assert read_folder(copy).hosted.fingerprint == known["it"]
    write_shard(copy / SHARDS[0], ["model.embed_tokens.weight"], fill=8)
    known["weights"] = read_folder(copy).hosted.fingerprint
    raw = (copy / SHARDS[1]).read_bytes()
    (copy / SHARDS[1]).write_bytes(raw[:-1] + b"\0")
    known["last weight"] = read_folder(copy).hosted.fingerprint
    (copy / "tokenizer.json").write_text('{"other": 1}')
    known["tokenizer"] = read_folder(copy).hosted.fingerprint
    configure(copy, rope_parameters={"rope_type": "linear", "factor": 2.0})
    known["config"] = read_folder(copy).hosted.fingerprint
    assert len(set(known.values())) == 5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gpt2"}, ["model_type: workers run llama", "'gpt2'"]),
        ({"model_type": None}, ["model_type: workers run llama"]),
        ({"quantization_config": {"quant_method": "awq"}}, ["quantization_config: workers run float weights"]),
        ({"dtype": None}, ["dtype: is missing", "float32, float16, bfloat16"]),
        ({"dtype": "int8"}, ["dtype: 'int8' is not one"]),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["rope_type: 'dynamic' is none of default"]),
        ({"max_position_embeddings": None}, ["max_position_embeddings: is missing"]),
        ({"eos_token_id": "</s>"}, ["eos_token_id: '</s>' is not a token"]),
        ({"hidden_size": None}, ["hidden_size: required key is missing"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_config_that_workers_cannot_serve_says_which_key(folder, changes, words):
    configure(folder, **changes)
    with pytest.raises(BadFile) as caught:
        read_folder(folder)
    shown = "\n".join(caught.value.lines())
    assert str(folder / "config.json") in shown
    assert all(word in shown for word in words), shown


def spoil_missing(folder):
    (folder / SHARDS[1]).unlink()


def spoil_cut(folder):
    raw = (folder / SHARDS[1]).read_bytes()
    (folder / SHARDS[1]).write_bytes(raw[:-100])


def spoil_text(folder):
    (folder / SHARDS[1]).write_text("version https://git-lfs.github.com/spec/v1")


def spoil_index(folder):
    listed = TENSORS | {"model.layers.0.mlp.up_proj.weight": SHARDS[1]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))


def spoil_outside(folder):
    listed = TENSORS | {"model.norm.weight": "../other.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))


def spoil_map(folder):
    (folder / "model.safetensors.index.json").write_text("[]")


def spoil_all(folder):
    for file in folder.glob("model*"):
        file.unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_missing, [SHARDS[1], "names it, and it is not here", "try: fetch the folder again"]),
        (spoil_cut, [SHARDS[1], "ends 100 bytes too early", "try: fetch the folder again"]),
        (spoil_text, [SHARDS[1], "not a safetensors file", "try: fetch the folder again"]),
        (spoil_index, [SHARDS[1], "model.layers.0.mlp.up_proj.weight, which it has not"]),
        (spoil_outside, ["index.json", "'../other.safetensors' is not a file of this folder"]),
        (spoil_map, ["index.json", "must be a JSON object"]),
        (spoil_all, ["has neither model.safetensors.index.json nor model.safetensors", "try: "]),
    ],
)
def test_weights_that_are_not_all_there_say_which_file(folder, spoil, words):
    spoil(folder)
    with pytest.raises(BadFile) as caught:
        read_folder(folder)
    shown = "\n".join(caught.value.lines())
    assert all(word in shown for word in words), shown


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"config\.json: no such file"):
        read_folder(tmp_path)
