"""Reasons about serving: nodes that join and leave, requests, layouts."""

from __future__ import annotations

from typing import Final

from strata.reasons.meaning import Meaning, Meanings

SERVING: Final[Meanings] = {
    "node-stale": Meaning("a newer incarnation of the node has joined",
        "The message comes from an earlier incarnation of the node, which has been restarted since.",
        "No action is needed, unless two machines use the same name: that looks the same."),
    "join-again": Meaning("the scheduler does not know the node",
        "A heartbeat came from a node that has been evicted, or that a restarted scheduler never saw.",
        "No action is needed: workers rejoin automatically."),
    "node-left": Meaning("left gracefully",
        "The node was shut down in an orderly way; its requests continue on other nodes."),
    "node-silent": Meaning("not heard for {seconds:g} s",
        "The node sent no heartbeat within heartbeat_timeout and was evicted; its requests continue on other "
        "nodes.",
        "Check the node and its network; it rejoins automatically."),
    "load-too-slow": Meaning("layers not loaded within {seconds:g} s",
        "The node sends heartbeats, but loading its layers takes many times as long as reading them should. It "
        "was evicted, so that the layers can be placed on the other nodes.",
        "Check the node's log and its disk; it rejoins automatically."),
    "node-lost": Meaning("the node left, stopped responding or lost its connection",
        "A node on the request's route is gone. The request is retried on another route with the tokens "
        "generated so far."),
    "node-forgot": Meaning("the node no longer runs it",
        "The first node of the route no longer lists the request among those it runs.",
        "No action is needed: the request is sent again."),
    "attempt-failed": Meaning("the attempt failed",
        "A worker or connection on the route failed. The request is retried on another route with the tokens "
        "generated so far.",
        "No action is needed; see the worker's log if it happens often."),
    "attempts-exhausted": Meaning("given up after {attempts} attempts",
        "The request failed on every route that was tried.",
        "See its timeline at /decisions/ID: the same node may be at fault each time."),
    "request-known": Meaning("a request with this id is already in progress",
        "Ids must be unique among unfinished requests.",
        "Use another id, or omit it."),
    "request-too-long": Meaning("needs {tokens} tokens of KV memory, but the largest pipeline has {most}",
        "Prompt and max_tokens together exceed the KV memory of every pipeline.",
        "Lower max_tokens, shorten the prompt, or add nodes with more memory."),
    "queue-full": Meaning("{waiting} requests are already waiting",
        "Requests arrive faster than they are served, and the queue has reached its limit.",
        "Try again later, or add nodes."),
    "makes-room": Meaning("its pipeline was drained to make room for a new layout",
        "A node cannot hold old and new layers at the same time; the request continues on another route with "
        "the tokens generated so far."),
    "plan-kept": Meaning("{pipelines} pipelines stay as they are",
        "Over the horizon, a new layout would not recover the cost of moving to it.",
        "No action is needed; a longer request_arrival_horizon favours moving."),
    "layers-do-not-fit": Meaning("{nodes} nodes hold {have} of {need} layers in the largest possible pipeline",
        "No pipeline of the pool's nodes holds all layers of the model, so nothing can be served.",
        "Add nodes, quantise the model, or leave less memory for the KV cache."),
    "fewer-tokens": Meaning("{ratio:.2f}x the tokens/s of the chosen plan",
        "The alternative works, but its slowest stages limit it to fewer tokens per second.",
        "Ask for --goal throughput if tokens/s are all that matters."),
    "less-goodput": Meaning("{ratio:.2f}x the requests within the goals",
        "The alternative works, but fewer of its requests meet the job's goals.",
        "Relax the goals, or ask for --goal throughput."),
    "slower-decode": Meaning("{factor:.2f}x the decode time of the chosen plan",
        "The alternative works, but each token takes longer to pass through its pipelines.",
        "Ask for --goal throughput if decode time is not what matters."),
    "same-plan": Meaning("gives the same tokens/s and the same decode time",
        "The alternative is as good as the chosen plan."),
    "nodes-cut": Meaning("each node of {domains} runs {groups} groups of {devices} devices: {gain}",
        "More requests are served so: fewer devices spend less of their time on tensor-parallel sums, and decode "
        "a token later.",
        "Ask for --goal latency if decode time is what matters."),
    "vendor-mix": Meaning("{count} of {total} pipelines join devices of {vendors}",
        "Activations pass between devices of several vendors there. strata's own workers do that over HTTP; vLLM "
        "and SGLang cannot, because their collective libraries support one vendor each.",
        "Split the fleet file by vendor, and put both plans behind one gateway."),
    "kv-bound": Meaning(
        "KV memory holds {slots} sequences, but {need} are needed to keep all stages busy: {share:.0%} of the "
        "stages' tokens/s",
        "A pipeline needs one batch in flight per stage, and its memory holds fewer.",
        "Use fewer stages, an fp8 KV cache, shorter requests, or more memory."),
    "pipeline-not-worth": Meaning("another pipeline on them: {tokens:+.1%} tokens/s, {decode:+.1%} decode time",
        "The nodes left over could serve, but the goal is better served without them.",
        "Ask for --goal throughput if decode time is not what matters."),
    "goal-missed": Meaning("{count} of {total} pipelines: {figure} of {reached}, but the goal is {asked}",
        "A stated goal is missed even on an idle pipeline, for a single prompt or for a token of the requested "
        "batch.",
        "Relax the goal, lower the batch, or ask for --goal latency."),
    "rate-not-served": Meaning("{served:.3g} requests/s can be served within the goals, but {asked:.3g} arrive",
        "More requests arrive than the pipelines that meet the goals can serve.",
        "Add nodes, quantise the weights, or relax the goals."),
    "fits-with-precision": Meaning("fits with {what} in {precision}",
        "A relaxation that would be sufficient alone: stored at this precision, the model and its KV cache fit.",
        "Set precision in the job, and serve a checkpoint with that quantisation."),
    "fits-with-less": Meaning("fits with {value} {what} instead of {asked}",
        "A relaxation that would be sufficient alone: with this smaller demand for KV memory, the model fits too.",
        "Set this key of the job's demand to the value shown."),
    "goal-out-of-reach": Meaning("{goal} within {wanted}, but even an idle pipeline needs {best}",
        "No pipeline, even when idle, can meet the request's goal for the first token or per token.",
        "Allow more time, shorten the prompt, or add faster nodes."),
}  # fmt: skip
