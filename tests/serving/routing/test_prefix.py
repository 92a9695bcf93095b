from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata.serving.planning.allocation import Stage
from strata.serving.routing.prefix import BLOCK_TOKENS, PrefixIndex, block_hashes
from tests.support.laws import examples


def index(*names: str, **more) -> PrefixIndex:
    one = PrefixIndex(**more)
    one.arrange([(Stage(name, 0, 4),) for name in names])
    return one


@given(st.lists(st.integers(0, 3), max_size=100), st.lists(st.integers(0, 3), max_size=100))
@examples(60)
def test_prompts_share_as_many_hashes_as_leading_full_blocks(first, second):
    ours, theirs = block_hashes(first), block_hashes(second)
    assert len(ours) == len(first) // BLOCK_TOKENS
    same = 0
    while same < min(len(ours), len(theirs)) and first[: (same + 1) * 16] == second[: (same + 1) * 16]:
        same += 1
    assert ours[:same] == theirs[:same]
    assert not set(ours[same:]) & set(theirs[same:])


def test_long_prompts_have_only_so_many_hashes():
    assert len(block_hashes(range(1000), most=3)) == 3


def test_each_pipeline_has_its_own_length_of_a_prompt():
    one = index("a", "b", "c")
    one.touch((1, 2, 3), 0, 0.0)
    one.touch((1, 2, 9), 2, 0.0)
    assert one.cached_blocks((1, 2, 3, 4), 1.0).tolist() == [3, 0, 2]
    assert one.cached_blocks((1, 2), 1.0).tolist() == [2, 0, 2]
    assert one.cached_blocks((), 1.0).tolist() == [0, 0, 0]
    assert one.cached_blocks((7,), 1.0).tolist() == [0, 0, 0]


def test_blocks_are_forgotten_between_one_and_two_ttl_after_their_last_use():
    one = index("a", "b", ttl_s=10.0)
    one.touch((1,), 0, 0.0)
    assert one.cached_blocks((1,), 9.9).tolist() == [1, 0]
    assert one.cached_blocks((1,), 12.0).tolist() == [1, 0]
    one.touch((1,), 1, 15.0)
    assert one.cached_blocks((1,), 23.0).tolist() == [0, 1]
    assert one.cached_blocks((1,), 100.0).tolist() == [0, 0]
    assert len(one) == 0


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=1, max_size=5), max_size=60))
@examples(40)
def test_no_more_is_kept_than_twice_the_limit_and_the_latest_is(prompts):
    one = index("a", limit=20)
    for now, blocks in enumerate(prompts):
        one.touch(blocks, 0, float(now))
        assert len(one) <= 2 * (20 + 5)
        assert one.cached_blocks(blocks, float(now)).tolist() == [len(blocks)]


def test_pipelines_keep_what_they_read_where_they_stay_and_newcomers_inherit_nothing():
    one = index("a", "b")
    one.touch((1, 2), 0, 0.0)
    one.touch((1,), 1, 0.0)
    stages = {name: (Stage(name, 0, 4),) for name in "abcd"}
    one.arrange([stages["c"], stages["b"], stages["d"]])
    assert one.cached_blocks((1, 2), 1.0).tolist() == [0, 1, 0]
    one.arrange([stages["a"], stages["b"]])
    assert one.cached_blocks((1, 2), 1.0).tolist() == [0, 1]
    assert len(one) == 1
