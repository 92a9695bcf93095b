"""The same families on a GPU: a chain of workers says there, too, what transformers says on it."""

import pytest

from tests.serving.pretrained import folders
from tests.serving.pretrained.test_layers import PROMPTS, chain_of, say
from tests.slicing.gpu.machine import why_no_gpu

pytestmark = [
    pytest.mark.real("torch", "transformers"),
    pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one"),
]


@pytest.mark.parametrize("cuts", [(), (1, 3)], ids=["one-range", "three-ranges"])
@pytest.mark.parametrize("family", folders.FAMILIES)
def test_ranges_say_what_transformers_generates(family, cuts, tmp_path):
    folder = folders.make(family, tmp_path)
    expected = [folders.generated(folder, prompt, 40, device="cuda") for prompt in PROMPTS]
    chain = chain_of(folder, *cuts, device="cuda")
    parameters = (each for part in chain for layer in part.layers.values() for each in layer.parameters())
    assert {each.device.type for each in parameters} == {"cuda"}
    assert [say(chain, prompt, 40) for prompt in PROMPTS] == expected


@pytest.mark.parametrize("family", folders.FAMILIES)
def test_an_interrupted_text_goes_on(family, tmp_path):
    chain = chain_of(folders.make(family, tmp_path), 2, device="cuda")
    whole = say(chain, PROMPTS[0], 30)
    assert say(chain, PROMPTS[0], 30, said=whole[:17]) == whole


@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
def test_half_precision_says_what_transformers_generates(family, tmp_path):
    folder = folders.make(family, tmp_path, dtype="bfloat16")
    chain = chain_of(folder, 2, device="cuda")
    assert say(chain, PROMPTS[0], 24) == folders.generated(folder, PROMPTS[0], 24, device="cuda")
