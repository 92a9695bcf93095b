"""Real families, small: whatever the cuts, a chain of workers says token for token what transformers says."""

import pytest

from strata.serving.worker.holder import DecodeRow, Draw
from tests.serving.pretrained import folders

pytestmark = pytest.mark.real("torch", "transformers")


@pytest.fixture(autouse=True)
def _one_thread():
    from tests.serving.worker.single_process import one_thread

    with one_thread():
        yield


PROMPTS = [list(range(5, 42)), [9], list(range(60, 380, 7))]


def chain_of(folder, *cuts, device="cpu"):
    from strata.serving.pretrained.folder import read_folder
    from strata.serving.pretrained.layers import PretrainedMaker

    maker = PretrainedMaker(read_folder(folder), device)
    hosted = maker.folder.hosted
    return [
        maker.part(first, end, {n: maker.layer(n) for n in hosted.layer_numbers(first, end)})
        for first, end in zip((0, *cuts), (*cuts, hosted.num_layers), strict=True)
    ]


def say(chain, prompt, count, *, said=(), most=10**6):
    """What the first worker of a route does, along a chain, `most` tokens of the prompt at a time.

    said: what an earlier attempt had said.
    """
    maker, said = chain[0].maker, list(said)
    caches, position = [maker.cache(len(prompt) + count) for _ in chain], 0
    parts = [(prompt[i : i + most], 0) for i in range(0, len(prompt), most)]
    parts += [(said[i : i + 5], 5) for i in range(0, len(said), 5)]
    while True:
        (x, replayed), position_of = parts.pop(0), position
        position += len(x)
        for part, cache in zip(chain, caches, strict=True):
            x = part.run(cache, x, position=position_of, replayed=min(replayed, len(x)))
        if parts:
            continue
        (token,) = chain[-1].choose(x[-1:], [Draw(0.0, 0, position)])
        if token == 1 or len(said) == count:
            return said
        said.append(token)
        parts.append(([token], 0))


@pytest.mark.parametrize("cuts", [(), (2,), (1, 3)], ids=["one-range", "two-ranges", "three-ranges"])
@pytest.mark.parametrize("family", folders.FAMILIES)
def test_ranges_say_what_transformers_generates(family, cuts, tmp_path):
    folder = folders.make(family, tmp_path)
    chain = chain_of(folder, *cuts)
    expected = [folders.generated(folder, prompt, 40) for prompt in PROMPTS]
    assert [say(chain, prompt, 40) for prompt in PROMPTS] == expected
    assert len({token for text in expected for token in text}) > 9, "a text of one token shows nothing"


@pytest.mark.parametrize("family", folders.FAMILIES)
def test_a_prompt_may_be_read_in_parts(family, tmp_path):
    folder = folders.make(family, tmp_path)
    chain, prompt = chain_of(folder, 2), PROMPTS[2]
    expected = folders.generated(folder, prompt, 30)
    assert [say(chain, prompt, 30, most=most) for most in (4, 15, len(prompt) - 1)] == [expected] * 3
    whole = say(chain, prompt, 30, most=15)
    assert say(chain, prompt, 30, most=15, said=whole[:13]) == whole


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3-moe"])
def test_half_precision_says_what_transformers_generates(family, tmp_path):
    folder = folders.make(family, tmp_path, dtype="bfloat16")
    assert say(chain_of(folder, 2), PROMPTS[0], 24) == folders.generated(folder, PROMPTS[0], 24)


@pytest.mark.parametrize("family", folders.FAMILIES)
def test_an_interrupted_text_goes_on_to_the_bit(family, tmp_path):
    import numpy as np

    chain = chain_of(folders.make(family, tmp_path))
    whole = say(chain, PROMPTS[0], 30)
    assert say(chain, PROMPTS[0], 30, said=whole[:17]) == whole
    (part,), tokens = chain, [*PROMPTS[0], *whole[:5]]
    at_once, stepwise = part.maker.cache(64), part.maker.cache(64)
    replayed = part.run(at_once, tokens, position=0, replayed=5)[-5:]
    part.run(stepwise, PROMPTS[0], position=0)
    steps = [part.run(stepwise, [token], position=len(PROMPTS[0]) + i) for i, token in enumerate(whole[:5])]
    assert np.array_equal(replayed, np.concatenate(steps))


@pytest.mark.parametrize("family", folders.FAMILIES)
def test_nobody_hears_who_is_served_beside(family, tmp_path):
    import numpy as np

    (part,) = chain_of(folders.make(family, tmp_path))
    caches = [part.maker.cache(64) for _ in range(11)]
    prompts = [[7 + i, 50, *range(20, 20 + 3 * i)] for i in range(11)]
    for cache, prompt in zip(caches, prompts, strict=True):
        part.run(cache, prompt, position=0)
    together = part.step([DecodeRow(c, 33 + i, len(prompts[i])) for i, c in enumerate(caches)])
    for i, prompt in enumerate(prompts):
        alone = part.maker.cache(64)
        part.run(alone, prompt, position=0)
        assert np.array_equal(part.run(alone, [33 + i], position=len(prompt))[0], together[i])


@pytest.mark.parametrize("family", folders.FAMILIES)
def test_memory_is_what_is_counted(family, tmp_path):
    chain, tokens = chain_of(folders.make(family, tmp_path), 2, 3), 40
    hosted = chain[0].maker.folder.hosted
    x = PROMPTS[0]
    for part in chain:
        cache = part.maker.cache(tokens)
        x = part.run(cache, x, position=0)
        held = {id(p): p.numel() * p.element_size() for one in part.layers.values() for p in one.parameters()}
        assert sum(held.values()) == hosted.weight_bytes(part.first, part.end)
        kept = sum(kv._rows.numel() * kv._rows.element_size() for kv in cache.values())
        assert kept == hosted.kv_bytes(part.first, part.end, tokens=tokens)


def test_embedding_and_head_that_are_one_are_held_once(tmp_path):
    (part,) = chain_of(folders.make("llama-tied", tmp_path))
    assert part.layers[0].weight is part.layers[6][1].weight
