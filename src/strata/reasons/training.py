"""Of training: what ASTRA-sim cannot be asked, and the learned scheduler."""

from __future__ import annotations

from typing import Final

from strata.reasons.meaning import Meaning, Meanings

TRAINING: Final[Meanings] = {
    "astra-links-differ": Meaning(
        "ASTRA-sim has one link for all of {dimension}, and these run from {low} to {high}",
        "Its analytical backends know one bandwidth and one latency a dimension; the plan's links differ by pair "
        "or direction.",
        "Name the aggregation: min (the least favourable link), mean or max; or use ns-3, or the event backend.",
    ),
    "astra-diagonal": Meaning(
        "{source} and {dest} would differ in more than one dimension",
        "ASTRA-sim charges a message across dimensions in the first one only: its wide-area hop would be free.",
        "Use ns-3, or the event backend.",
    ),
    "astra-unequal-domains": Meaning(
        "{what} differ between pipelines: {values}",
        "All domains of ASTRA-sim's analytical backends have one size, so sums between unequal ones have no form.",
        "Use the event backend, or a plan of like pipelines; ns-3 takes unequal copies.",
    ),
    "astra-one-dimension": Meaning(
        "the aware backend has one dimension, and the plan needs {count}: {dimensions}",
        "ASTRA-sim's congestion-aware backend knows one dimension, so all links must become one.",
        "Name an aggregation, or use the unaware backend.",
    ),
    "astra-schedule": Meaning(
        "{what} cannot be written as one step of point-to-point messages and sums",
        "Interleaved schedules, and local steps whose sums are rarer than steps, are not lowered to traces.",
        "Use the analytic or the event backend, or a synchronous 1F1B plan.",
    ),
    "astra-links-vary": Meaning(
        "its links change with time, and ASTRA-sim's do not",
        "A run of ASTRA-sim has constant links; one value of a process would be reported as the answer.",
        "Use the event backend, or fix the links to one instant.",
    ),
    "astra-message-too-large": Meaning(
        "a message of {size} is beyond the 2 GiB an integer of ns-3 holds",
        "ns-3 counts the bytes of a message in 32 bits; a larger one would wrap around.",
        "Use an analytical backend, or a smaller microbatch.",
    ),
    "kept-binding": Meaning(
        "kept: {throughput:.1%} of the planned throughput, best of {considered} bindings",
        "No other binding of the domain's devices earns more than it costs to go there.",
        "Nothing to do.",
    ),
    "rebound": Meaning(
        "{name}: {throughput:.1%} of the planned throughput for {downtime_s:.3g} s of standing still, best of "
        "{considered} bindings",
        "The local agent bound its part of the plan to other devices, or shared the microbatches anew.",
        "Nothing to do; `keeping_loses` says what it was worth.",
    ),
    "device-gone": Meaning(
        "cannot go on as it is without {devices}",
        "The binding in use needs devices that are lost or taken, or memory that other work has taken.",
        "Repair the devices; until then another binding is used.",
    ),
    "cannot-hold": Meaning(
        "{have} devices are left where its part of the plan needs {need} in groups of {ranks} within a node",
        "No binding of the devices that are left has the memory or the groups that the domain's part needs.",
        "The global agent plans without them; add devices, or allow a smaller tensor-parallel degree.",
    ),
    "throughput-fell": Meaning(
        "runs at {kept:.1%} of the planned throughput, {before:.1%} when the plan was made (limit: -{share:.0%})",
        "The local agent has done what it can, and the domain still lost more than the coordinator allows.",
        "Nothing to do; the global agent is asked.",
    ),
    "switch-never-pays": Meaning(
        "gains at most {gain:.4g} over {steps} steps where the switch costs {cost:.4g}",
        "The guard refused a switch whose expected gain is below its cost at every span from 1 to 16 steps; where "
        "nothing was in use yet, a first choice that is behind the safe rule's over all of them.",
        "Nothing to do; the safe rule's choice was taken.",
    ),
    "figures-not-finite": Meaning(
        "{count} options have no finite figures",
        "A measurement or a prediction was NaN or infinite; the guard let the safe rule decide without it.",
        "Check what measures the links and devices.",
    ),
    "pick-not-legal": Meaning(
        "option {pick} cannot be taken",
        "A policy picked an option that does not exist or cannot be used now; the safe rule's choice was taken.",
        "Check that the policy file is of this version.",
    ),
    "no-plan-yet": Meaning(
        "there is no plan yet",
        "Nothing was planned before, or nothing fitted.",
        "Nothing to do; the global agent is asked.",
    ),
    "links-changed": Meaning(
        "link {source}-{dest} is at {now} where the plan was made at {then}",
        "A link in use changed by more than the coordinator's threshold since the last global decision.",
        "Nothing to do; the global agent is asked.",
    ),
    "policy-version": Meaning(
        "the policy file is of version {found}, and this is version {wanted}",
        "The file was trained on other features, so its numbers would mean something else; the safe rule decided.",
        "Train again (strata learn train), or use the bundled policy.",
    ),
    "fleet-too-large": Meaning(
        "{domains} domains, where the policy was evaluated on up to {most}",
        "Nothing is known of the policy's quality on so large a fleet; the safe rule decided.",
        "Allow fewer domains (limits.domains), or evaluate the policy on more.",
    ),
    "plan-gone": Meaning(
        "the plan in use cannot run on this fleet any more: {domains}",
        "Domains of the plan in use are missing, smaller, or out of reach; a new plan was chosen as if none ran.",
        "Nothing to do; check the fleet file if the domains should be there.",
    ),
    "ratios-without-plan": Meaning(
        "no plan follows these ratios over {domains}",
        "Neither a pipeline with such shares of the layers nor such shares of the batch fits memory and links.",
        "Ask the planner, which chooses among plans instead of ratios.",
    ),
    "interval-over": Meaning(
        "{iterations} iterations since the last global decision",
        "The global agent looks at its plan every so many iterations.",
        "Nothing to do.",
    ),
    "domain-vanished": Meaning(
        "{domain} is no longer in the fleet",
        "A domain that the plan used does not report any more; the plan was made again without it.",
        "Bring the domain back, or remove it from the fleet file.",
    ),
}  # fmt: skip
