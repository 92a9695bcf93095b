from __future__ import annotations

import pytest

from strata.workload.huggingface import model, model_names
from strata.workload.layer_table import layer_table


@pytest.mark.parametrize("name", model_names())
def test_the_products_of_a_layer_are_its_flops(name):
    spec = model(name)
    length = min(2048, spec.max_sequence_length or 2048)
    table = layer_table(spec, length)
    for kernels, flops in zip(table.kernels, table.forward_flops, strict=True):
        counted = (
            2 * length * sum(product.active_params for product in kernels.products)
            + length * min(length, kernels.window or length) * kernels.pair_flops
        )
        assert counted == pytest.approx(flops, rel=1e-9)


def test_experts_share_the_copies_of_tokens_sent_to_them():
    moe = layer_table(model("qwen3-30b-a3b"), 2048).kernels[1]
    routed = [product for product in moe.products if product.groups > 1]
    assert {(product.copies, product.groups) for product in routed} == {(8, 128)}
    assert moe.routed_elements > 0


def test_a_block_moves_less_than_its_products_compute():
    for name in ("llama-3.1-70b", "gpt2"):
        kernels = layer_table(model(name), 1024).kernels[1]
        assert kernels.streamed_elements < sum(product.active_params for product in kernels.products) / 25
