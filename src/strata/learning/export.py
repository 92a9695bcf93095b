"""The scorer as ONNX: its graph written node by node, so that no deprecated tracer decides what is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from strata.errors import need
from strata.files import write_bytes
from strata.learning.network import Scorer
from strata.training.hi_ppo.features import FEATURES
from strata.training.hi_ppo.policy import metadata

OPSET: Final = 17
"""Of ONNX 1.12 (2022): every onnxruntime since 1.12 reads it."""


class _Graph:
    """Nodes and constants as they are added; each call returns the name of what it computes."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def add(self, operation: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"n{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operation, list(inputs), [name], **attributes))
        return name

    def linear(self, values: str, weight: Any, bias: Any = None) -> str:
        product = self.add("MatMul", values, self.constant(weight.T))
        return product if bias is None else self.add("Add", product, self.constant(bias))

    def silu(self, values: str) -> str:
        return self.add("Mul", values, self.add("Sigmoid", values))

    def widen(self, values: str, axis: int) -> str:
        return self.add("Unsqueeze", values, self.constant([axis], np.int64))

    def column(self, values: str, feature: str) -> str:
        index = self.constant(FEATURES.index(feature), np.int64)
        return self.add("Gather", values, index, axis=2)


def export(network: Scorer, path: str | Path) -> None:
    """Write the network's logits as an ONNX file that `load_policy` reads.

    Raises MissingPart where onnx is not installed, UsageError where the file cannot be written.
    """
    onnx = need("onnx", extra="train")
    weights = {name: tensor.detach().cpu().numpy() for name, tensor in network.state_dict().items()}
    graph = _Graph(onnx)
    _build(graph, weights, margin=network.margin)
    helper, kinds = onnx.helper, onnx.TensorProto
    inputs = [
        helper.make_tensor_value_info("features", kinds.FLOAT, ["decisions", "options", len(FEATURES)]),
        helper.make_tensor_value_info("context", kinds.FLOAT, ["decisions", weights["decision.weight"].shape[1]]),
        helper.make_tensor_value_info("legal", kinds.BOOL, ["decisions", "options"]),
    ]
    logits = helper.make_tensor_value_info("logits", kinds.FLOAT, ["decisions", "options"])
    model = helper.make_model(
        helper.make_graph(graph.nodes, "hi_ppo", inputs, [logits], initializer=graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
        producer_name="strata",
    )
    helper.set_model_props(model, metadata())
    onnx.checker.check_model(model)
    write_bytes(path, model.SerializeToString(deterministic=True))


def _build(graph: _Graph, weights: dict[str, Any], *, margin: float) -> None:
    """Add what `Scorer.forward` computes, line by line."""
    decision = graph.widen(graph.linear("context", weights["decision.weight"]), 1)
    option = graph.linear("features", weights["option.weight"], weights["option.bias"])
    own = graph.silu(graph.add("Add", option, decision))
    own = graph.silu(graph.linear(own, weights["hidden.weight"], weights["hidden.bias"]))
    mask = graph.widen(graph.add("Cast", "legal", to=graph.onnx.TensorProto.FLOAT), 2)
    first = graph.constant([1], np.int64)
    count = graph.add("ReduceSum", mask, first, keepdims=0)
    total = graph.add("ReduceSum", graph.add("Mul", own, mask), first, keepdims=0)
    mean = graph.add("Div", total, graph.add("Max", count, graph.constant(1.0)))
    away = graph.add("Mul", graph.add("Sub", mask, graph.constant(1.0)), graph.constant(1e4))
    most = graph.add("ReduceMax", graph.add("Add", own, away), axes=[1], keepdims=0)
    in_use = graph.widen(graph.column("features", "in_use"), 2)
    used = graph.add("ReduceSum", graph.add("Mul", own, in_use), first, keepdims=0)
    pooled = graph.add("Concat", mean, most, used, axis=1)
    shared = graph.widen(graph.linear(pooled, weights["pooled.weight"]), 1)
    mixed = graph.silu(graph.add("Add", graph.linear(own, weights["own.weight"], weights["own.bias"]), shared))
    scored = graph.linear(mixed, weights["score.weight"], weights["score.bias"])
    learned = graph.add("Squeeze", scored, graph.constant([2], np.int64))
    cost = graph.add("Mul", graph.column("features", "switch_cost"), graph.constant(margin))
    exact = graph.add("Sub", graph.column("features", "behind_best_now"), cost)
    sharpness = graph.constant(np.exp(weights["log_sharpness"]))
    logits = graph.add("Mul", graph.add("Add", exact, learned), sharpness)
    graph.add("Where", "legal", logits, graph.constant(-1e9), output="logits")
