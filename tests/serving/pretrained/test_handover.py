"""Keys and values of real layers, moved between workers: what they say is what transformers generates."""

import asyncio

import pytest

from tests.serving.pretrained import folders
from tests.serving.worker.builders import Cluster
from tests.serving.worker.test_handover import following, goes_on, parked

pytestmark = pytest.mark.real("torch", "transformers")

PROMPT = [0, 17, 300, 5, 42, 42, 108, 3]
COUNT = 90
"""More than a part of a cache."""


@pytest.mark.parametrize("family", ["llama", "qwen2-moe", "qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_answer_that_moves_twice_is_what_transformers_generates(family, dtype, tmp_path):
    from strata.serving.pretrained.folder import read_folder
    from strata.serving.pretrained.layers import PretrainedMaker

    folder = read_folder(folders.make(family, tmp_path, dtype=dtype))
    options = {"model": folder.hosted, "maker": lambda: PretrainedMaker(folder), "step_limit_s": 300.0}

    async def scenario():
        steps = []
        async with Cluster(2, 4, **options) as cluster:
            asked = {"prompt": PROMPT, "max_tokens": COUNT, "stop_tokens": folder.stop_tokens}
            whole = await cluster.said(request_id="whole", **asked)
            cluster.network.before = lambda node_id, key, row: steps.append(row.tokens)
            a, b, c = cluster.workers
            message, said = await parked(cluster, len(whole) - 20, **asked)
            steps.clear()
            message = following(message, said, await cluster.relay(3, workers=[c, a]))
            _, more = await parked(cluster, 10, message)
            lines = await goes_on(cluster, message, said + more, await cluster.relay(workers=[b]))
            return whole, said + more + [line.token for line in lines if line.token is not None], steps

    whole, said, steps = asyncio.run(asyncio.wait_for(scenario(), 300))
    assert said == whole
    assert set(steps) == {1}  # nothing was read again
    if dtype == "float32":  # in bfloat16 sums of other shapes are rounded otherwise
        assert said == folders.generated(folder.path, PROMPT, COUNT)
