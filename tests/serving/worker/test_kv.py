"""Keys and values on their way: what is taken out of a cache fills another, to the bit."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.real("torch")

HEADS, SIZE = 2, 8


def filled(count, *, dtype=None, max_tokens=300, window=0, seed=1):
    from strata.serving.worker.kv import KvCache

    generator = torch.Generator().manual_seed(seed)
    cache = KvCache(max_tokens, {4: window} if window else {})

    def drawn(heads, tokens):
        return torch.randn(1, heads, tokens, SIZE, generator=generator).to(dtype or torch.float32)

    prompt = count - 3
    cache[4](drawn(2 * HEADS, prompt), drawn(HEADS, prompt), drawn(HEADS, prompt))
    for _ in range(3):
        cache[4](drawn(2 * HEADS, 1), drawn(HEADS, 1), drawn(HEADS, 1))
    return cache, lambda: (drawn(2 * HEADS, 1), drawn(HEADS, 1), drawn(HEADS, 1))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("ahead", [0, 2])
def test_attention_goes_on_to_the_bit(dtype, ahead):
    from strata.serving.worker.kv import PART_TOKENS, KvCache

    whole, _ = filled(150, dtype=getattr(torch, dtype))
    source, more = filled(150, dtype=getattr(torch, dtype))
    parts = source.taken(4, 150 - ahead)
    assert len(parts) == -(-(150 - ahead) // PART_TOKENS)
    assert 4 not in source
    other = KvCache(200)
    other.fill(4, 150 - ahead, parts)
    if not ahead:
        step = more()
        assert torch.equal(whole[4](*step), other[4](*step))
    else:
        assert b"".join(other.taken(4, 148)) == b"".join(whole.taken(4, 148))


def test_a_window_that_is_not_full_goes_and_one_that_is_does_not():
    from strata.serving.worker.handover import KvError

    assert filled(150, window=200)[0].taken(4, 150)
    with pytest.raises(KvError, match="151 tokens are cached in room for 150, not the first 151"):
        filled(151, window=150)[0].taken(4, 151)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda parts: parts[:-1], "128 of 150 tokens came"),
        (lambda parts: [], "0 of 150 tokens came"),
        (lambda parts: [*parts, parts[0]], "are not those of 150"),
        (lambda parts: [parts[0][:-1], *parts[1:]], "are not the keys and values of 64 tokens"),
        (lambda parts: [b"x", *parts], "1 bytes are no keys and values"),
        (lambda parts: [b"\xff" * len(parts[0])], "are not those of 150"),
        (lambda parts: [parts[1], parts[2][:-1]], "are not the keys and values"),
    ],
)
def test_what_is_no_part_is_refused(change, words):
    from strata.serving.worker.handover import KvError
    from strata.serving.worker.kv import KvCache

    parts = filled(150)[0].taken(4, 150)
    with pytest.raises(KvError, match=words):
        KvCache(200).fill(4, 150, change(parts))


def test_more_than_there_is_or_room_for_is_refused():
    from strata.serving.worker.handover import KvError
    from strata.serving.worker.kv import KvCache

    cache, _ = filled(150)
    with pytest.raises(KvError, match="nothing is cached in layer 9"):
        cache.taken(9, 10)
    with pytest.raises(KvError, match="in room for 100"):
        KvCache(100).fill(4, 150, filled(150)[0].taken(4, 150))
    with pytest.raises(KvError, match="150 tokens are cached in room for 300, not the first 151"):
        cache.taken(4, 151)
