"""Reasons about training: what ASTRA-sim cannot simulate, and the learned scheduler."""

from __future__ import annotations

from typing import Final

from strata.reasons.meaning import Meaning, Meanings

TRAINING: Final[Meanings] = {
    "astra-links-differ": Meaning(
        "ASTRA-sim has a single link type for {dimension}, but the links range from {low} to {high}",
        "Its analytical backends have one bandwidth and one latency per dimension; the plan's links differ by "
        "pair or direction.",
        "Name the aggregation: min (the least favourable link), mean or max; or use ns-3, or the event backend."),
    "astra-diagonal": Meaning("{source} and {dest} would differ in more than one dimension",
        "ASTRA-sim charges a message that crosses dimensions only for the first one: the wide-area hop would be "
        "free.",
        "Use ns-3, or the event backend."),
    "astra-unequal-domains": Meaning("{what} differ between pipelines: {values}",
        "In ASTRA-sim's analytical backends all domains have one size, so all-reduces between unequal domains "
        "cannot be expressed.",
        "Use the event backend, or a plan with equal pipelines; ns-3 accepts unequal ones."),
    "astra-one-dimension": Meaning(
        "the congestion-aware backend has one dimension, but the plan needs {count}: {dimensions}",
        "ASTRA-sim's congestion-aware backend has one dimension, so all links must be merged into one.",
        "Name an aggregation, or use the congestion-unaware backend."),
    "astra-schedule": Meaning("{what} cannot be written as one step of point-to-point messages and sums",
        "Interleaved schedules, zb-h1, local steps, whose sums happen less than once per step, and ZeRO stages 2 "
        "and 3, which exchange gradients or weights for every microbatch, are not lowered to traces.",
        "Use the analytic or the event backend, or plan with train.schedules: [1f1b, 1f1b-la, gpipe]."),
    "astra-links-vary": Meaning("its links change over time, and ASTRA-sim's do not",
        "A run of ASTRA-sim has constant links; one value of a process would be reported as the answer.",
        "Use the event backend, or fix the links to one instant."),
    "astra-message-too-large": Meaning("a message of {size} exceeds the 2 GiB that ns-3 can count",
        "ns-3 counts the bytes of a message in 32 bits; a larger one would wrap around.",
        "Use an analytical backend, or a smaller microbatch."),
    "kept-binding": Meaning("kept: {throughput:.1%} of the planned throughput, best of {considered} bindings",
        "No other binding of the domain's devices gains more than the change costs."),
    "rebound": Meaning(
        "{name}: {throughput:.1%} of the planned throughput after {downtime_s:.3g} s of downtime, best of "
        "{considered} bindings",
        "The local agent bound its part of the plan to other devices, or redistributed the microbatches.",
        "No action is needed; `keeping_loses` says what the change is worth."),
    "device-gone": Meaning("cannot continue unchanged without {devices}",
        "The binding in use needs devices that are lost or taken, or memory that other work has taken.",
        "Repair the devices; until then another binding is used."),
    "cannot-hold": Meaning(
        "{have} devices remain, but its part of the plan needs {need} in groups of {ranks} within a node",
        "No binding of the remaining devices has the memory or the groups that the domain's part needs.",
        "The global agent plans without them; add devices, or allow a smaller tensor-parallel degree."),
    "throughput-fell": Meaning(
        "runs at {kept:.1%} of the planned throughput, {before:.1%} when the plan was made (limit: -{share:.0%})",
        "The local agent has done what it can, and the domain still lost more than the coordinator allows.",
        "No action is needed; the global agent makes a new decision."),
    "switch-never-pays": Meaning("gains at most {gain:.4g} over {steps} steps where the switch costs {cost:.4g}",
        "The guard refused a switch whose expected gain is below its cost over every span of 1 to 16 steps; "
        "where no plan was in use yet, it refused a first choice worse than the safe rule's over all of them.",
        "No action is needed; the safe rule's choice was used."),
    "figures-not-finite": Meaning("{count} options have no finite figures",
        "A measurement or a prediction was NaN or infinite; the guard let the safe rule decide without it.",
        "Check what measures the links and devices."),
    "pick-not-legal": Meaning("option {pick} is not available",
        "A policy picked an option that does not exist or cannot be used now; the safe rule's choice was used.",
        "Check that the policy file is of this version."),
    "links-changed": Meaning("link {source}-{dest} is at {now} where the plan was made at {then}",
        "A link in use changed by more than the coordinator's threshold since the last global decision.",
        "No action is needed; the global agent makes a new decision."),
    "policy-version": Meaning("the policy file has version {found}, but version {wanted} is required",
        "The file was trained on other features, so its numbers would mean something else; the safe rule decided.",
        "Train again (strata learn train), or use the bundled policy."),
    "fleet-too-large": Meaning("{domains} domains, but the policy was evaluated on at most {most}",
        "The policy's quality on such a large fleet is not known; the safe rule decided.",
        "Allow fewer domains (limits.domains), or evaluate the policy on more."),
    "plan-gone": Meaning("the plan in use can no longer run on this fleet: {domains}",
        "Domains of the plan in use are missing, smaller, or out of reach; a new plan was chosen as if none ran.",
        "No action is needed; check the fleet file if the domains should be there."),
    "ratios-without-plan": Meaning("no plan follows these ratios over {domains}",
        "Neither a pipeline with such shares of the layers nor such shares of the batch fits memory and links.",
        "Use the planner, which chooses among plans instead of ratios."),
    "domain-vanished": Meaning("{domain} is no longer there for jobs",
        "A domain that the plan used was drained or left the fleet; a new plan is made without it.",
        "Undo the drain, or remove the domain from the fleet file."),
}  # fmt: skip
