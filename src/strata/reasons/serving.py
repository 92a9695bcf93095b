"""Of serving: nodes that join and leave, requests, layouts."""

from __future__ import annotations

from typing import Final

from strata.reasons.meaning import Meaning, Meanings

SERVING: Final[Meanings] = {
    "node-stale": Meaning(
        "a later start of the node is in",
        "The message is of an earlier life of the node: it has been started again since.",
        "Nothing to do; two machines under one name would show so too.",
    ),
    "join-again": Meaning(
        "the scheduler does not know the node",
        "A heartbeat came from a node that has been evicted, or that a restarted scheduler never saw.",
        "Nothing to do: workers join again by themselves.",
    ),
    "node-left": Meaning(
        "said good-bye",
        "The node was stopped in order; what ran there goes on elsewhere.",
        "Nothing to do.",
    ),
    "node-silent": Meaning(
        "not heard for {seconds:g} s",
        "The node missed all its heartbeats over heartbeat_timeout and is out; what ran there goes on elsewhere.",
        "Look at the node and its network; it joins again by itself.",
    ),
    "load-too-slow": Meaning(
        "layers not loaded within {seconds:g} s",
        "The node sends heartbeats, but needs many times as long to load its layers as reading them should take. "
        "It is out, so that the others are laid out without it.",
        "Look at the node's log and its disk; it joins again by itself.",
    ),
    "node-lost": Meaning(
        "the node left, fell silent or broke off",
        "A node of the request's route is gone. The request is sent elsewhere with what it had generated.",
        "Nothing to do.",
    ),
    "node-forgot": Meaning(
        "the node does not run it any more",
        "The first node of the route no longer lists the request among those it runs.",
        "Nothing to do: the request is sent again.",
    ),
    "attempt-failed": Meaning(
        "the attempt broke off",
        "A worker or a connection on the route failed. The request is sent elsewhere with what it had generated.",
        "Nothing to do; see the worker's log if it happens often.",
    ),
    "attempts-exhausted": Meaning(
        "given up after {attempts} attempts",
        "The request broke off on every route it was sent along.",
        "See its timeline at /decisions/ID: the same node may be at fault each time.",
    ),
    "request-known": Meaning(
        "a request of this id is under way",
        "Ids must be unique among unfinished requests.",
        "Use another id, or leave it out.",
    ),
    "request-too-long": Meaning(
        "needs {tokens} tokens of KV memory where the longest pipeline has {most}",
        "Prompt and max_tokens together exceed what any pipeline can keep.",
        "Lower max_tokens, shorten the prompt, or add nodes with more memory.",
    ),
    "queue-full": Meaning(
        "{waiting} requests are waiting already",
        "More requests come than are served, and the queue has reached its limit.",
        "Try again later, or add nodes.",
    ),
    "makes-room": Meaning(
        "its pipeline makes room for another layout",
        "A node cannot hold old and new layers at once; the request goes on elsewhere with what it had generated.",
        "Nothing to do.",
    ),
    "plan-kept": Meaning(
        "{pipelines} pipelines stay as they are",
        "A new layout would not earn over the horizon what moving to it costs.",
        "Nothing to do; a longer request_arrival_horizon favours moving.",
    ),
    "layers-do-not-fit": Meaning(
        "{nodes} nodes hold {have} of {need} layers in the roomiest pipeline",
        "No pipeline of the pool's nodes holds all layers of the model, so nothing can be served.",
        "Add nodes, quantise the model, or leave less memory for the KV cache.",
    ),
    "fewer-tokens": Meaning(
        "{ratio:.2f}x the tokens/s of the chosen plan",
        "The alternative works, but its slowest stages let fewer tokens through.",
        "Ask for --goal throughput if tokens/s are all that matters.",
    ),
    "less-goodput": Meaning(
        "{ratio:.2f}x the requests within the goals",
        "The alternative works, but fewer of its requests keep the job's goals.",
        "Relax the goals, or ask for --goal throughput.",
    ),
    "slower-decode": Meaning(
        "{factor:.2f}x the decode time of the chosen plan",
        "The alternative works, but a token takes longer around its pipelines.",
        "Ask for --goal throughput if decode time is not what matters.",
    ),
    "same-plan": Meaning(
        "gives as many tokens/s and the same decode time",
        "The alternative is worth what the chosen plan is worth.",
        "Nothing to do.",
    ),
    "vendor-mix": Meaning(
        "{count} of {total} pipelines join devices of {vendors}",
        "Activations pass between devices of several vendors there: strata's own workers do that over HTTP, vLLM "
        "and SGLang do not, whose collective libraries know one vendor.",
        "Split the fleet file by vendor, and put both plans behind one gateway.",
    ),
    "kv-bound": Meaning(
        "KV memory holds {slots} sequences where {need} keep all stages busy: {share:.0%} of the stages' tokens/s",
        "A pipeline of several stages needs a batch in flight for each; its memory holds fewer.",
        "Fewer stages, an fp8 KV cache, shorter requests, or more memory.",
    ),
    "pipeline-not-worth": Meaning(
        "one more pipeline of them: {tokens:+.1%} tokens/s, {decode:+.1%} decode time",
        "The nodes left over could serve, but the goal is better served without them.",
        "Ask for --goal throughput if decode time is not what matters.",
    ),
    "goal-missed": Meaning(
        "{count} of {total} pipelines: {figure} of {reached} where {asked} is asked",
        "A stated goal is missed on an idle pipeline: by a prompt alone, or by a token of the demanded batch.",
        "Relax the goal, lower the batch, or ask for --goal latency.",
    ),
    "rate-not-served": Meaning(
        "{served:.3g} requests/s can be served within the goals where {asked:.3g} arrive",
        "More requests arrive than the pipelines that keep the goals get through.",
        "Add nodes, quantise the weights, or relax the goals.",
    ),
    "fits-with-precision": Meaning(
        "fits with {what} in {precision}",
        "A relaxation that would do alone: so stored, the model and its KV cache fit.",
        "Set precision in the job, and serve a checkpoint that is quantised so.",
    ),
    "fits-with-less": Meaning(
        "fits with {value} {what} instead of {asked}",
        "A relaxation that would do alone: so much less KV memory is asked for that the model fits beside it.",
        "Set the key of the job's demand to the value.",
    ),
    "goal-out-of-reach": Meaning(
        "{goal} within {wanted}, where an idle pipeline needs {best}",
        "No pipeline could meet the request's time to the first token or per token, were it idle.",
        "Allow more time, shorten the prompt, or add faster nodes.",
    ),
}  # fmt: skip
