"""The real small transformer: however it is cut or interrupted, not a token differs."""

import pytest

from strata.errors import UsageError
from strata.serving.tokens import encode
from strata.serving.worker.holder import DecodeRow, Draw
from strata.serving.worker.shape import Shape

SHAPE = Shape(num_layers=5, hidden_size=32, num_heads=4, max_positions=96, seed=1)
PROMPT = encode("once upon")

pytestmark = pytest.mark.real("torch")


def parts(*cuts):
    from strata.serving.worker.model import LayerMaker

    maker, ends = LayerMaker(SHAPE), (*cuts, SHAPE.num_layers)
    return [
        maker.part(first, end, {n: maker.layer(n) for n in SHAPE.hosted.layer_numbers(first, end)})
        for first, end in zip((0, *cuts), ends, strict=True)
    ]


def say(*cuts, generated=(), max_tokens=40, temperature=0.0, seed=0):
    """What `generate` does, along a chain, perhaps going on with what was said before."""
    from strata.serving.worker.kv import KvCache
    from tests.serving.worker.single_process import one_thread

    chain, said, position = parts(*cuts), list(generated), 0
    caches = [KvCache(SHAPE.max_positions) for _ in chain]
    given, replayed = [*PROMPT, *said], len(said)
    with one_thread():
        while len(said) < max_tokens:
            x = given
            for part, cache in zip(chain, caches, strict=True):
                x = part.run(cache, x, position=position, replayed=replayed)
            position += len(given)
            said.append(chain[-1].choose(x[-1:], [Draw(temperature, seed, position)])[0])
            given, replayed = said[-1:], 0
    return said


def generate(**options):
    from tests.serving.worker.single_process import generate

    return generate(SHAPE, PROMPT, **({"max_tokens": 40} | options))


@pytest.mark.parametrize("cuts", [(), (2,), (1, 3), (1, 2, 3, 4)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_chain_says_what_the_whole_model_says(cuts, temperature):
    assert say(*cuts, temperature=temperature, seed=3) == generate(temperature=temperature, seed=3)


@pytest.mark.parametrize("interrupted", [1, 17, 39])
def test_an_interrupted_text_goes_on_as_if_nothing_had_been(interrupted):
    whole = generate(temperature=1.0, seed=3)
    assert say(2, generated=whole[:interrupted], temperature=1.0, seed=3) == whole


def test_replayed_tokens_leave_the_same_bits_behind():
    import numpy as np

    from strata.serving.worker.kv import KvCache
    from tests.serving.worker.single_process import one_thread

    (part,), tokens = parts(), [*PROMPT, 1, 2, 3]
    with one_thread():
        at_once, stepwise = KvCache(96), KvCache(96)
        a = part.run(at_once, tokens, position=0, replayed=3)
        b = [part.run(stepwise, PROMPT, position=0)]
        b += [part.run(stepwise, tokens[p : p + 1], position=p) for p in range(len(PROMPT), len(tokens))]
    assert np.array_equal(a, np.concatenate(b))


@pytest.mark.parametrize("together", [2, 3, 8, 11])
@pytest.mark.parametrize("cuts", [(), (2, 3)])
def test_sequences_that_are_decoded_together_have_the_bits_of_each_alone(together, cuts):
    """They come and go: the i-th begins with step i, and is as long as it is."""
    import numpy as np

    from strata.serving.worker.kv import KvCache
    from tests.serving.worker.single_process import one_thread

    chain, steps = parts(*cuts), 24

    def likeliest(x):
        return chain[-1].choose(x[-1:], [Draw(0.0, 0, 0)])[0]

    with one_thread():
        alone = []
        for i in range(together):
            caches, given, hidden = [KvCache(96) for _ in chain], [i, *PROMPT[: i + 1]], []
            position = 0
            for _ in range(steps - i):
                x = given
                for part, cache in zip(chain, caches, strict=True):
                    x = part.run(cache, x, position=position)
                position, given = position + len(given), [likeliest(x)]
                hidden.append(x[-1])
            alone.append(hidden)
        running = []  # caches, next position, next token, hidden states
        for step in range(steps):
            for position_in_chain, part in enumerate(chain):
                if position_in_chain == 0:
                    given = [one[2] for one in running]
                rows = [
                    DecodeRow(one[0][position_in_chain], x, one[1]) for one, x in zip(running, given, strict=True)
                ]
                given = part.step(rows) if rows else []
            for one, x in zip(running, given, strict=True):
                one[1] += 1
                one[2] = likeliest(x[None])
                one[3].append(x)
            if step < together:
                caches, x = [KvCache(96) for _ in chain], [step, *PROMPT[: step + 1]]
                start = len(x)
                for part, cache in zip(chain, caches, strict=True):
                    x = part.run(cache, x, position=0)
                token = likeliest(x)
                running.append([caches, start, token, [x[-1]]])
    for (_, _, _, hidden), expected in zip(running, alone, strict=True):
        assert np.array_equal(hidden, expected[: len(hidden)])


def test_texts_differ_by_seed_and_by_temperature():
    texts = [generate(), generate(temperature=1.0, seed=3), generate(temperature=1.0, seed=4)]
    assert len({tuple(text) for text in texts}) == 3


def test_weights_differ_by_seed():
    from tests.serving.worker.single_process import generate

    other = generate(Shape(5, 32, 4, 96, seed=2), PROMPT, max_tokens=40)
    assert other != generate(SHAPE, PROMPT, max_tokens=40)


def test_a_stop_token_ends_the_text():
    text = generate()
    stop = text[10]
    assert generate(stop_tokens=(stop,)) == text[: text.index(stop)]


def test_positions_end_the_text():
    assert len(generate(max_tokens=10**6)) == SHAPE.max_positions - len(PROMPT)


def test_cached_attention_is_the_attention_of_training():
    import torch

    from strata.serving.worker.kv import KvCache
    from strata.workload.tiny import Size, build_layer

    block = build_layer(Size(7, hidden_size=32), 3)
    x, cache = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(0)), KvCache(9)
    with torch.inference_mode():
        stepwise = [block(x[:, :4], cache[0])] + [block(x[:, t : t + 1], cache[0]) for t in range(4, 9)]
        torch.testing.assert_close(torch.cat(stepwise, dim=1), block(x))


def test_the_shape_knows_the_bytes_of_the_weights():
    for part, first, end in zip(parts(1, 3), (0, 1, 3), (1, 3, 5), strict=True):
        held = sum(p.numel() * p.element_size() for layer in part.layers.values() for p in layer.parameters())
        assert held == SHAPE.hosted.weight_bytes(first, end)


def test_the_shape_knows_the_bytes_of_keys_and_values():
    from strata.serving.worker.kv import KvCache

    part, cache = parts(1, 3)[1], KvCache(10)
    hidden = parts(1, 3)[0].run(KvCache(10), PROMPT, position=0)
    part.run(cache, hidden, position=0)
    held = sum(one._rows.numel() * one._rows.element_size() for one in cache.values())
    assert held == SHAPE.hosted.kv_bytes(1, 3, tokens=10)


def test_the_machine_is_measured():
    from strata.serving.worker.hardware import measure

    found = measure("cpu")
    assert min(found) > 0
    assert measure("cpu", 5e6).memory_bytes == 5e6
    with pytest.raises(UsageError, match="--memory: 100000TiB is more than all memory here"):
        measure("cpu", 1e5 * 2**40)
