"""Of plans, whatever they are for: better, worse, impossible, and what would help."""

from __future__ import annotations

from typing import Final

from strata.reasons.meaning import Meaning, Meanings

PLANS: Final[Meanings] = {
    "chosen": Meaning(
        "best {objective} of {considered} plans considered",
        "This alternative has the best value of the objective among all that satisfy the limits.",
        "No action is needed.",
    ),
    "slower": Meaning(
        "{factor:.2f}x the step time of the chosen plan",
        "The alternative works, but its step takes longer.",
        "Ask for another objective (--minimize cost) if time is not what matters.",
    ),
    "dearer": Meaning(
        "{factor:.2f}x the cost of the chosen plan",
        "The alternative works, but costs more for the same tokens.",
        "Ask for --minimize time if money is not what matters.",
    ),
    "scores-lower": Meaning(
        "scores {score:.4g} against {best:.4g} on {objective}",
        "The alternative works, but scores lower on the objective that was asked for.",
        "Ask for another objective or other weights.",
    ),
    "memory-exceeded": Meaning(
        "needs {need} per device where {have} is usable",
        "Parameters, optimizer state and activations do not fit the accelerator's memory.",
        "Use recomputation, a higher tensor-parallel degree, ZeRO, or more devices.",
    ),
    "link-missing": Meaning(
        "no link {source}-{dest}",
        "The fleet names no link between two domains that the plan would have to connect.",
        "Add the link to the fleet file, or leave the domain out.",
    ),
    "link-too-slow": Meaning(
        "link {source}-{dest} ({bandwidth}, {latency}) adds {added} to a step of {step}",
        "Using the domain costs more time on the wide-area link than its accelerators save.",
        "Add bandwidth, compress gradients, or use local steps (DiLoCo).",
    ),
    "unreachable": Meaning(
        "no link reaches {domain} from any other domain",
        "The domain can only be used alone.",
        "Add a link to the fleet file.",
    ),
    "domain-not-allowed": Meaning(
        "{domain} is not among the allowed domains",
        "The job's limits name the domains it may use.",
        "Add the domain to limits.domains.",
    ),
    "figure-missing": Meaning(
        "the {figure} of {accelerator} are not known",
        "No published or measured figure exists for the accelerator; strata does not invent one.",
        "Give the figure in the fleet file's accelerators section, or a measured profile in the job.",
    ),
    "no-accelerators": Meaning(
        "{domain} has no accelerators",
        "A domain without devices cannot run a stage.",
        "Correct num_gpus, or remove the domain.",
    ),
    "over-budget": Meaning(
        "costs {cost} per step where the limit is {limit}",
        "The plan would exceed the budget in the job's limits.",
        "Raise limits.cost, or accept a slower plan.",
    ),
    "too-slow": Meaning(
        "reaches {reached} tokens/s where the floor is {floor}",
        "The plan misses the throughput floor in the job's limits.",
        "Lower limits.tokens_per_s, or add devices or bandwidth.",
    ),
    "compute-bound": Meaning(
        "{share:.0%} of the step is computation: the gain comes from the number of devices, not from the "
        "placement",
        "The network hardly matters for this job; a comparison with fewer devices flatters the plan.",
        "Use the equal-GPU comparison instead.",
    ),
    "network-bound": Meaning(
        "{share:.0%} of the step waits for wide-area links",
        "Bandwidth or latency between domains sets the pace.",
        "Compress gradients, use local steps (DiLoCo), or use fewer domains.",
    ),
    "bubble-bound": Meaning(
        "{share:.0%} of the step is pipeline bubble",
        "Stages wait for the pipeline to fill and drain.",
        "Use more microbatches, fewer stages, or a larger global batch.",
    ),
    "single-domain-best": Meaning(
        "{domain} alone is best: crossing domains would cost {factor:.2f}x",
        "No set of domains beats the best single one for this job.",
        "No action is needed; more bandwidth between domains would change the result.",
    ),
    "fits-with-recompute": Meaning(
        "fits with recompute: {mode}",
        "The smallest relaxation found: recomputing activations frees enough memory.",
        "Set train.recompute to auto.",
    ),
    "needs-devices": Meaning(
        "needs {count} more devices of {memory} ({kind})",
        "The smallest relaxation found: with this many more accelerators, the model fits.",
        "Add devices, or choose a smaller model.",
    ),
    "needs-limit": Meaning(
        "would be feasible with {limit} relaxed to {value}",
        "The smallest relaxation found: one of the job's own limits excludes every plan.",
        "Relax the limit named.",
    ),
    "tokens-penalty": Meaning(
        "local steps H={steps} need {eta:.3f}x the tokens (assumed)",
        "DiLoCo trades wide-area traffic for extra tokens; the factor comes from an assumed table.",
        "Compare with the synchronous plans shown beside it.",
    ),
    "time-limit": Meaning(
        "search stopped after {elapsed}: {evaluated} plans examined",
        "The time limit was reached before the search could close the gap; the best plan so far is shown.",
        "Raise --time-limit.",
    ),
    "nodes-apart": Meaning(
        "no links join enough of the {nodes} nodes to hold the model",
        "Together the nodes could hold the model, but a pipeline over them needs a link that does not exist.",
        "Add links to the fleet file, or nodes to one of the domains.",
    ),
}  # fmt: skip
