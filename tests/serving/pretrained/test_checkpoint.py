"""Which tensors are read, and what is wrong with those that cannot be."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from strata.errors import BadFile
from strata.serving.pretrained.folder import read_folder
from tests.serving.pretrained import folders

pytestmark = pytest.mark.real("torch", "transformers")


def spoil(folder, name, make):
    """Rewrite the shard that has a tensor, with `make(tensor)` in its place; None leaves it out."""
    from safetensors.torch import load_file, save_file

    index = json.loads((folder / "model.safetensors.index.json").read_text())
    file = index["weight_map"][name]
    tensors = load_file(folder / file)
    made = make(tensors.pop(name))
    if made is None:
        del index["weight_map"][name]
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        tensors[name] = made
    save_file(tensors, folder / file, metadata={"format": "pt"})
    return file


@pytest.mark.parametrize(
    ("family", "name", "make", "words"),
    [
        ("llama", "model.layers.3.mlp.up_proj.weight", lambda t: None,
         "has no model.layers.3.mlp.up_proj.weight; the config asks for (96, 64)"),
        ("qwen3", "model.layers.0.self_attn.q_norm.weight", lambda t: t[:8].clone(),
         "model.layers.0.self_attn.q_norm.weight is (8,); the config asks for (24,)"),
        ("mistral", "model.norm.weight", lambda t: t.int(),
         "model.norm.weight is stored as I32; workers read F32"),
        ("qwen3-moe", "model.layers.2.mlp.experts.4.down_proj.weight", lambda t: t.T.contiguous(),
         "model.layers.2.mlp.experts.4.down_proj.weight is (48, 64); the config asks for (64, 48)"),
        ("mixtral", "model.layers.1.block_sparse_moe.gate.weight", lambda t: None,
         "has no model.layers.1.block_sparse_moe.gate.weight; the config asks for (4, 64)"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)  # fmt: skip
def test_a_tensor_that_is_not_the_configs_is_named_with_its_file(family, name, make, words, tmp_path):
    from strata.serving.pretrained.layers import PretrainedMaker

    folder = folders.make(family, tmp_path)
    file = spoil(folder, name, make)
    with pytest.raises(BadFile) as caught:
        PretrainedMaker(read_folder(folder))
    shown = "\n".join(caught.value.lines())
    assert words in shown
    assert str(folder / ("model.safetensors.index.json" if "has no" in words else file)) in shown
    assert "try: the weights that belong to this config.json" in shown


def test_a_tensor_that_the_config_does_not_know_is_named(tmp_path):
    from strata.serving.pretrained.layers import PretrainedMaker

    folder = folders.make("qwen2", tmp_path)
    folders.edit(folder, model_type="llama", use_sliding_window=None, sliding_window=None, layer_types=None)
    with pytest.raises(BadFile, match=r"model\.layers\.0\.self_attn\..*bias: a model of this config has no such"):
        PretrainedMaker(read_folder(folder))


def test_windows_that_are_read_two_ways_are_refused(tmp_path):
    from strata.serving.pretrained.layers import PretrainedMaker

    folder = folders.make("qwen3-moe", tmp_path)
    folders.edit(folder, sliding_window=10, use_sliding_window=None)
    with pytest.raises(BadFile, match="sliding_window: transformers reads windows"):
        PretrainedMaker(read_folder(folder))


THIN_70B = """
import json, resource, sys
from pathlib import Path

folder = Path(sys.argv[1])
config = json.loads((Path(sys.argv[2]) / "llama-3.1-70b.json").read_text())
config |= {"hidden_size": 512, "intermediate_size": 1792, "num_attention_heads": 8, "num_key_value_heads": 1,
           "vocab_size": 4096, "head_dim": 64, "dtype": "float32", "eos_token_id": None}
(folder / "config.json").write_text(json.dumps(config))
block = {"self_attn.q_proj": [512, 512], "self_attn.k_proj": [64, 512], "self_attn.v_proj": [64, 512],
         "self_attn.o_proj": [512, 512], "mlp.gate_proj": [1792, 512], "mlp.up_proj": [1792, 512],
         "mlp.down_proj": [512, 1792], "input_layernorm": [512], "post_attention_layernorm": [512]}
shapes = {f"model.layers.{i}.{name}.weight": shape for i in range(80) for name, shape in block.items()}
shapes |= {"model.embed_tokens.weight": [4096, 512], "lm_head.weight": [4096, 512], "model.norm.weight": [512]}
shards = {}
for name, shape in shapes.items():
    part = name.split(".")[2] if ".layers." in name else "80"
    shards.setdefault(int(part) // 4, {})[name] = shape
weight_map = {}
for number, tensors in shards.items():
    header, end = {}, 0
    for name, shape in tensors.items():
        begin, end = end, end + 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
        weight_map[name] = f"{number}.safetensors"
    raw = json.dumps(header).encode()
    with (folder / f"{number}.safetensors").open("wb") as stream:
        stream.write(len(raw).to_bytes(8, "little") + raw)
        stream.truncate(8 + len(raw) + end)
(folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

from strata.serving.pretrained import checkpoint
from strata.serving.pretrained.folder import read_folder
from strata.serving.pretrained.layers import PretrainedMaker

opened, really = [], checkpoint.safe_open
checkpoint.safe_open = lambda file, **more: opened.append(Path(file).name) or really(file, **more)

def peak_bytes():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

read = read_folder(folder)
before = peak_bytes()
maker = PretrainedMaker(read)
checked = peak_bytes()
layers = {number: maker.layer(number) for number in read.hosted.layer_numbers(3, 5)}
maker.part(3, 5, layers).run(maker.cache(8), [[0.5] * 512] * 4, position=0)
print(json.dumps({
    "opened": sorted(set(opened)), "layers": sorted(layers), "check_bytes": checked - before,
    "load_bytes": peak_bytes() - checked, "range_bytes": read.hosted.weight_bytes(3, 5),
    "model_bytes": read.hosted.weight_bytes(0, 80),
    "read_bytes": sum(p.numel() * 4 for layer in layers.values() for p in layer.parameters()),
}))
"""


def test_two_layers_of_eighty_cost_two_layers(tmp_path):
    import strata.workload

    configs = Path(strata.workload.__file__).parent / "models"
    ran = subprocess.run(
        [sys.executable, "-c", THIN_70B, str(tmp_path), str(configs)], capture_output=True, text=True, check=True
    )
    found = json.loads(ran.stdout)
    assert found["opened"] == ["0.safetensors", "1.safetensors"]  # blocks 3 and 4, of 4 a file
    assert found["layers"] == [4, 5]  # of which 0 would embed
    assert found["read_bytes"] == found["range_bytes"] < found["model_bytes"] / 38
    # The layers, their pages in the files' maps, and what the first step of torch takes: far less than all.
    assert found["load_bytes"] < 2 * found["range_bytes"] + 2**27 < found["model_bytes"] / 2
    assert found["check_bytes"] < 2**26
