"""The reasons there are: stable tokens, what each means and what one can do about it.

The token is the same in tables, JSON, Kubernetes events, metric labels and docs/reasons.md, made from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a reason token stands for: the sentence shown, what it means, and what one can do about it."""

    sentence: str
    means: str
    remedy: str


REASONS: Final[Mapping[str, Meaning]] = {
    "chosen": Meaning(
        "best {objective} of {considered} plans considered",
        "This alternative has the best value of the objective among all that satisfy the limits.",
        "Nothing to do.",
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
        "Joining the domain costs more on the wide-area link than its accelerators save.",
        "More bandwidth, gradient compression, or local steps (DiLoCo).",
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
        "{share:.0%} of the step is computing: the gain is the number of devices, not the placement",
        "The network hardly matters for this job; comparing with fewer devices flatters the plan.",
        "Read the equal-GPU comparison instead.",
    ),
    "network-bound": Meaning(
        "{share:.0%} of the step waits for wide-area links",
        "Bandwidth or latency between domains sets the pace.",
        "Gradient compression, local steps (DiLoCo), or fewer domains.",
    ),
    "bubble-bound": Meaning(
        "{share:.0%} of the step is pipeline bubble",
        "Stages wait for the pipeline to fill and drain.",
        "More microbatches, fewer stages, or a larger global batch.",
    ),
    "single-domain-best": Meaning(
        "{domain} alone is best: crossing domains would cost {factor:.2f}x",
        "No set of domains beats the best single one for this job.",
        "Nothing to do; more bandwidth between domains would change it.",
    ),
    "fits-with-recompute": Meaning(
        "fits with recompute: {mode}",
        "The smallest relaxation found: recomputing activations frees enough memory.",
        "Set train.recompute to auto.",
    ),
    "needs-devices": Meaning(
        "needs {count} more devices of {memory} ({kind})",
        "The smallest relaxation found: so many more accelerators would hold the model.",
        "Add devices, or choose a smaller model.",
    ),
    "needs-limit": Meaning(
        "would be feasible with {limit} relaxed to {value}",
        "The smallest relaxation found: one of the job's own limits excludes every plan.",
        "Relax the limit named.",
    ),
    "tokens-penalty": Meaning(
        "local steps H={steps} need {eta:.3f}x the tokens (assumed)",
        "DiLoCo trades wide-area traffic for extra tokens; the factor is a declared table, not a law.",
        "Compare with the synchronous plans shown beside it.",
    ),
    "schedule-memory": Meaning(
        "latency-aware warm-up would need {need} per device where {have} is usable",
        "Hiding the wide-area latency needs more activations in flight than memory allows.",
        "Use recomputation or a smaller microbatch.",
    ),
    "time-limit": Meaning(
        "search stopped after {elapsed}: {evaluated} plans examined",
        "The time limit passed before the search could close the gap; the best plan so far is shown.",
        "Raise --time-limit.",
    ),
    "nodes-apart": Meaning(
        "no links join enough of the {nodes} nodes to hold the model",
        "The model fits the nodes together, but a pipeline of them would need a link that does not exist.",
        "Add links to the fleet file, or nodes to one of the domains.",
    ),
    "node-stale": Meaning(
        "a later start of the node is in",
        "The message is of an earlier life of the node: it has been started again since.",
        "Nothing to do; two machines under one name would show so too.",
    ),
    "join-again": Meaning(
        "the scheduler does not know the node",
        "A beat came from a node that has been expelled, or that a restarted scheduler never saw.",
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
        "The node beats, but needs many times as long to load its layers as reading them should take. It is out, "
        "so that the others are laid out without it.",
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
        "See its story at /decisions/ID: the same node may be at fault each time.",
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
    "goal-out-of-reach": Meaning(
        "{goal} within {wanted}, where an idle pipeline needs {best}",
        "No pipeline could meet the request's time to the first token or per token, were it idle.",
        "Allow more time, shorten the prompt, or add faster nodes.",
    ),
    "gang-placed": Meaning(
        "{pods} pods of {devices} {model} on {nodes} nodes, within {level}, score {score:.3f}",
        "The best placement of the whole gang, by nearness, links, fragmentation and fit.",
        "Nothing to do.",
    ),
    "exchanged": Meaning(
        "{count}x {model} for {wanted}: {ratio:.2f} by {figure} (norm {norm}, {trust})",
        "The request was turned into devices of this model by its ACU vector, rounded up.",
        "Ask for another norm if another figure matters more (ai.compute/norm).",
    ),
    "fraction-of": Meaning(
        "{wanted} is {share:.0%} of the cores of {model} ({trust})",
        "A fraction's compute was turned into a share of one device by its ACU vector.",
        "Nothing to do.",
    ),
    "more-than-one-device": Meaning(
        "asks for {share:.0%} of one device",
        "A fraction lives on one device, and this model is too small for it.",
        "Ask for whole devices, or for less.",
    ),
    "devices-too-few": Meaning(
        "asks for {asked} devices where the amounts need {need} ({ratio:.2f})",
        "The job counts devices itself, and so many of this model do not have the amounts it asks for.",
        "Leave the count out, or ask for smaller amounts.",
    ),
    "no-profile": Meaning(
        "no runtime profile is for it (framework {framework}, profile {profile})",
        "Nothing says which image, environment and resource name such a card needs.",
        "Add a RuntimeProfile for this model, or ask for another framework.",
    ),
    "substitution-not-allowed": Meaning(
        "is no {wanted}, and the job takes no other card",
        "The job was written for one card, and its substitution policy is never.",
        "Set ai.compute/substitution to ask or allow.",
    ),
    "substitution-wanted": Meaning(
        "{offer} are free for {wanted} (profile {profile}); waiting for consent",
        "The card the job was written for is not free, and its substitution policy is ask.",
        "Set ai.compute/substitution to allow, or wait.",
    ),
    "no-devices": Meaning(
        "has no accelerators",
        "The node's agent found no device, or no agent runs there.",
        "Nothing to do; check the agent if it should have some.",
    ),
    "placed-elsewhere": Meaning(
        "is not among the nodes the pod was placed on: {nodes}",
        "The pod was placed on other nodes before it was made, and its environment is for those.",
        "Nothing to do; the pod goes where it was placed.",
    ),
    "node-closed": Meaning(
        "is closed to new pods",
        "The node is cordoned, or not ready.",
        "Uncordon the node once it is well.",
    ),
    "node-tainted": Meaning(
        "has the taint {taint}, which the profile does not tolerate",
        "A taint keeps pods away from the node.",
        "Remove the taint, or let the profile tolerate it.",
    ),
    "node-unlabelled": Meaning(
        "lacks the label {label}",
        "The profile's node selector asks for a label that the node does not have.",
        "Label the node, or change the profile.",
    ),
    "devices-busy": Meaning(
        "{free} of {total} devices are free where a pod takes {need}",
        "Other pods use the devices.",
        "Wait, or ask for fewer devices.",
    ),
    "devices-unhealthy": Meaning(
        "{unwell} of {total} devices are below health {limit}, so fewer than {need} can be used",
        "Devices with faults or slowdowns are not used.",
        "Repair or reset the devices; the agent lists their faults.",
    ),
    "fraction-busy": Meaning(
        "no device has {need} and {share:.0%} of its cores free (at most {most} and {most_share:.0%})",
        "Every device has too little memory or too few cores left for the fraction.",
        "Wait, or ask for a smaller fraction.",
    ),
    "room-for-fewer": Meaning(
        "has room for {room} of {pods} pods (within {level})",
        "The node could hold some pods, but a gang is placed whole or not at all.",
        "Wait, ask for fewer pods, or let the gang spread further.",
    ),
    "claim-unreadable": Meaning(
        "asks for something that cannot be read: {why}",
        "The job's annotations, or the ComputeClaim it names, are missing, wrong or contradict each other.",
        "Correct what the message names; the job stays suspended meanwhile.",
    ),
    "made-anew": Meaning(
        "was made for a place under {profile} that is taken, and there is room elsewhere",
        "What was injected into a pod cannot be changed; its owner makes another, for a card that is free.",
        "Nothing to do.",
    ),
    "release-refused": Meaning(
        "has a place, and the API server refuses to let it go there: {why}",
        "What strata writes into the job's template was refused, by its kind's rules or an admission policy.",
        "Do what the message says; it is tried again every 30 s.",
    ),
    "gang-runs": Meaning(
        "{pods} pods of {devices} {model} on {nodes} nodes; why there was not kept",
        "The controller that placed it ended before it had said so.",
        "Nothing to do.",
    ),
    "gang-moved": Meaning(
        "is held back, to be routed anew: it holds devices that are out",
        "A device of its own is broken, or slow where the policy moves for that.",
        "Nothing to do; it goes on from its newest complete checkpoint where ai.compute/checkpoint-dir names one.",
    ),
    "gang-fits-nowhere": Meaning(
        "{pods} pods fit nowhere on {nodes} nodes",
        "No kind of card has room for the whole gang now.",
        "See what would help beside it; the gang waits meanwhile.",
    ),
    "fits-if": Meaning(
        "fits on {nodes} nodes with {model} if {what} is {value}",
        "The smallest relaxation found: one change of the request, or of the nodes.",
        "Make the change, or wait.",
    ),
    "fits-fewer-pods": Meaning(
        "fits with {pods} pods instead of {asked}",
        "The largest gang that would fit now.",
        "Ask for fewer pods, or wait.",
    ),
    "needs-free-devices": Meaning(
        "needs {count} devices of {model} to be free for {pods} pods",
        "The smallest relaxation found: so many devices would hold the gang.",
        "Wait, or add nodes.",
    ),
    "node-isolated": Meaning(
        "{what}: taken out of service (time {times})",
        "A device of the node is broken, or slow against its own model's cohort; the node is tainted, because "
        "neither kube-scheduler nor a device plugin can leave out one device.",
        "Repair or reset the devices; the node returns by itself once they have been well for long enough.",
    ),
    "isolation-waits": Meaning(
        "{what}: should leave, but as many nodes are out as may be at a time",
        "The budget of simultaneous isolations is used up. The node has the soft form of the taint.",
        "Repair the nodes that are out. Where many fail at once, suspect what they share.",
    ),
    "node-released": Meaning(
        "has been well for long enough and is back in service",
        "The node's devices were well without a break for the time its relapses ask for.",
        "Nothing to do.",
    ),
    "standing-unreadable": Meaning(
        "its annotation {key} is not one we write ({fault})",
        "What was remembered of the node's isolation cannot be read; it counts as out since now if it is tainted.",
        "Leave the annotation to the controller.",
    ),
    "checkpoint-unfinished": Meaning(
        "is still being written, or was left half written: {what}",
        "A file has a temporary name, was written moments ago, or is newer than what ends a checkpoint.",
        "Nothing to do; an older one is used. A marker (.complete) makes a fresh one usable at once.",
    ),
    "checkpoint-incomplete": Meaning(
        "{what}",
        "Files are missing or empty that its index, its names, or the older checkpoints say it has.",
        "Nothing to do; an older one is used.",
    ),
    "checkpoint-torn": Meaning(
        "ends too early: {what}",
        "A file is shorter than its own header says, or its index cannot be read.",
        "Nothing to do; an older one is used. Check the storage if this recurs.",
    ),
    "checkpoint-unannounced": Meaning(
        "is beyond step {what}, the last that its writer announced",
        "The tracker file beside it names an older step: it was never finished, or was rolled back.",
        "Nothing to do; an older one is used.",
    ),
    "checkpoint-unknown": Meaning(
        "is of no layout we know: {what}",
        "It is neither of torch, Megatron, DeepSpeed or Hugging Face nor marked as complete.",
        "Write an empty file .complete into it as the last step of saving.",
    ),
    "checkpoint-unreadable": Meaning(
        "{why}",
        "The folder a job names for its checkpoints is absent, not below the controller's, or cannot be read.",
        "Name a folder below what the controller was given (--checkpoints), which it may read.",
    ),
    "no-peer-access": Meaning(
        "devices of a node cannot reach each other's memory",
        "Peer access is off or missing; collectives go through the host, and are told so by the environment.",
        "Nothing to do; switch peer access on if the hardware has it.",
    ),
    "policy-unreadable": Meaning(
        "{fault}",
        "scx_layered cannot read this part of the policy, and does not start.",
        "Correct what the sentence names; names and types are those of scx_layered's config.rs.",
    ),
    "policy-size": Meaning(
        "{count} layers where 1 to {limit} are taken",
        "scx_layered refuses a policy without layers or with more than it was compiled for.",
        "Join layers that are run alike: one layer may match several sets of threads.",
    ),
    "catch-all-missing": Meaning(
        "the last layer, {name!r}, must match every thread: \"matches\": [[]]",
        "A thread that fits no layer is an error to scx_layered, so it asks for a last layer that takes all.",
        "Add a last layer with \"matches\": [[]].",
    ),
    "matches-empty": Meaning(
        "layer {name!r} has no match block and is not the last",
        "scx_layered refuses a layer before the last that matches nothing.",
        "Give it a block, or remove the layer.",
    ),
    "matches-too-many": Meaning(
        "{what}",
        "scx_layered has a fixed room for blocks, for conditions in a block, and for regular expressions.",
        "Use shorter prefixes that cover several names, or split the layer.",
    ),
    "match-text-too-long": Meaning(
        "{size} bytes; at most {limit} are compared",
        "scx_layered refuses the policy. A thread's name is 15 bytes at most.",
        "Shorten the text; a prefix matches longer names.",
    ),
    "match-value-range": Meaning(
        "{matcher} {value} is not from {low} to {high}",
        "scx_layered refuses the policy.",
        "Give a value in the range; utilisations are shares of 1.",
    ),
    "hint-misused": Meaning(
        "{why}",
        "Hints are looked up in one table; scx_layered refuses them beside other conditions or in two layers.",
        "Give each hint its own block, in one layer.",
    ),
    "cpus-range-wrong": Meaning(
        "{why}",
        "scx_layered refuses the layer's number of CPUs, partly only after it has started.",
        "Give cpus_range [least, most] or cpus_range_frac, shares from 0 to 1, but not both.",
    ),
    "util-range-wrong": Meaning(
        "{why}",
        "The range of utilisation decides when a layer grows and shrinks; scx_layered refuses it.",
        "Give \"util_range\": [low, high] with 0 <= low < high; an Open layer has none.",
    ),
    "regex-wrong": Meaning(
        "no regular expression that scx_layered takes: {why}",
        "It is compiled by Rust's regex library when the scheduler starts, which then ends.",
        "Correct it; use CgroupPrefix or CgroupContains where that is enough.",
    ),
    "template-unsupported": Meaning(
        "a template by {matcher} is not built",
        "scx_layered panics on templates by anything but CgroupSuffix and CgroupRegex.",
        "Use one of these two.",
    ),
    "numa-node-spread": Meaning(
        "NumaNode with {algo}: the CPUs it takes on the other nodes stay idle",
        "The layer's threads live on one node, but its CPUs are spread over all; scx_layered refuses that.",
        "Use a growth_algo that does not spread, as Linear or Topo.",
    ),
    "place-absent": Meaning(
        "{what}: the machine has {has}, each to be named once",
        "scx_layered refuses NUMA nodes and caches that are not there or named twice.",
        "Name those that are there; `strata host layers` writes a policy for the machine it runs on.",
    ),
    "cpu-ids-have-holes": Meaning(
        "{what} numbers of this machine have holes",
        "scx_layered counts CPUs and nodes from 0 without a gap and refuses other machines (CPUs switched off).",
        "Switch the CPUs on, or use `strata host layers --plain`.",
    ),
    "key-unknown": Meaning(
        "no such key: {key!r} is dropped without a word{meant}",
        "scx_layered drops keys it does not know, so that a misspelt setting has no effect.",
        "Correct the key or remove it.",
    ),
    "catch-all-early": Meaning(
        "layer {name!r} takes every thread; no layer behind it gets one",
        "The first layer that matches takes a thread, and this block matches all.",
        "Move the layer to the end, or say what it is for.",
    ),
    "layer-shadowed": Meaning(
        "layer {name!r} never gets a thread: {by} takes them all before",
        "Whatever this layer matches is matched by an earlier one.",
        "Put the narrower layer first, or remove it.",
    ),
    "match-never": Meaning(
        "{why}",
        "No thread can ever fit this block, so it is dead.",
        "Put alternatives into blocks of their own; conditions of one block must hold together.",
    ),
    "match-text-panics": Meaning(
        "{why}: scx_layered panics on it",
        "The text is copied into a fixed room with its end; the check before it is off by one, or absent.",
        "Shorten the text by the bytes that are too many.",
    ),
    "layer-name-panics": Meaning(
        "the name is {size} bytes; {limit} fit, without a zero byte, or scx_layered panics",
        "Names are cut to 128 bytes, one too many for the room they are copied to.",
        "Shorten the name; a template adds up to 64 bytes to it.",
    ),
    "cgroup-path-form": Meaning(
        "never matches: {why}",
        "scx_layered compares with paths like system.slice/docker/: no slash before, one behind.",
        "Write the path as it does.",
    ),
    "template-idle": Meaning(
        "no cgroup ends with {suffix!r} here: a template's paths have no slash at their end",
        "Unlike CgroupSuffix in matches, a template is compared with paths without the last slash. It fits "
        "none, and the layer is taken as one layer without the cgroup's condition.",
        "Leave out the slash.",
    ),
    "kthread-inverted": Meaning(
        "IsKthread false matches kernel threads, as true does",
        "The scheduler's BPF part does not look at the value.",
        "Leave it out; put kernel threads into an earlier layer with IsKthread true.",
    ),
    "perf-too-high": Meaning(
        "perf {perf} is above {limit}: the kernel ejects the scheduler",
        "It is handed to scx_bpf_cpuperf_set as it stands, which ends a scheduler that asks for too much.",
        "Give 1 to 1024, 1024 being the top frequency; 0 asks for nothing.",
    ),
    "cpus-minima-exceed": Meaning(
        "layers ask for {asked} CPUs at least, where there are {where}",
        "Not all layers can have their minimum; who goes without depends on the order of growth.",
        "Lower cpus_range or cpus_range_frac.",
    ),
    "protected-leaves-none": Meaning(
        "protected layers keep all of {where} at least; every other thread starves",
        "Nobody else may use a protected layer's CPUs, even idle ones.",
        "Leave a CPU or more out of their minima.",
    ),
    "key-ignored": Meaning(
        "{key} is not read here; it belongs to {where}",
        "scx_layered drops the key without a word.",
        "Move it where it is read, or remove it.",
    ),
    "key-deprecated": Meaning(
        "{key} does nothing any more",
        "scx_layered reads the key for the sake of old files, warns, and ignores it.",
        "Remove it.",
    ),
    "match-shadowed": Meaning(
        "all that fits this block is taken by layer {by!r} before",
        "The layer gets threads by its other blocks, never by this one.",
        "Remove the block, or move the layer before the other.",
    ),
    "protected-can-take-all": Meaning(
        "protected layers may grow to all of {where}",
        "Nobody else may use a protected layer's CPUs, and nothing limits how many they take.",
        "Give protected layers a cpus_range or cpus_range_frac that leaves some.",
    ),
    "open-preempt-protected": Meaning(
        "preempt does not reach the CPUs of protected {protected}",
        "An Open layer owns no CPUs; what it may preempt is what no layer protects.",
        "Make the layer Grouped with CPUs of its own, or do without protection.",
    ),
    "topology-ignored": Meaning(
        "{what} is cleared: this machine has one NUMA node and no second cache to tell apart",
        "scx_layered switches topology off on such a machine, and drops nodes and llcs with it.",
        "Nothing to do if the policy is for a larger machine (--elsewhere).",
    ),
    "gpu-catches-loaders": Meaning(
        "{matcher} alone takes every thread of a process that uses a GPU, its loaders too",
        "Data loaders and pools live in the process that launches kernels, and open the device with it.",
        "Add IsGroupLeader true or a CommPrefix, or label the launching thread and match CmdJoin.",
    ),
    "gpu-needs-flag": Meaning(
        "{matcher} ends the scheduler unless it is started with --enable-gpu-support",
        "Who uses a GPU is learnt by probes in the NVIDIA driver, which are off by default.",
        "Start scx_layered with --enable-gpu-support.",
    ),
    "perf-no-schedutil": Meaning(
        "perf has no effect with governor {governor}",
        "The performance level a scheduler asks for is only read by schedutil.",
        "Use the governor schedutil, or performance and no perf.",
    ),
    "exclusive-no-smt": Meaning(
        "exclusive has no effect: no core has two CPUs",
        "It keeps the other CPU of the core idle; here there is none.",
        "Remove it.",
    ),
    "membw-no-monitor": Meaning(
        "membw_gb has no effect, or stops the start: the kernel counts no memory traffic here",
        "The cap is computed from resctrl's counters (mon_data) and the processor's, which must be known.",
        "Mount resctrl on a processor that monitors bandwidth, or remove the cap.",
    ),
    "membw-no-cap": Meaning(
        "membw_gb {value} caps nothing",
        "scx_layered takes 0, and all that is below it, for no cap.",
        "Give GiB/s above 0, or leave it out.",
    ),
    "xnuma-inverted": Meaning(
        "[{low}, {high}]: work starts to move to another node above the second and stops below the first",
        "With the first above the second, the two overlap and threads flap between nodes.",
        "Give the lower value first.",
    ),
    "preempt-unlimited": Meaning(
        "{key} is ignored in a layer that preempts",
        "scx_layered sets it to never there.",
        "Remove one of the two.",
    ),
    "preempt-first-alone": Meaning(
        "preempt_first does nothing without preempt",
        "It says where to preempt first, in a layer that may preempt.",
        "Add preempt, or remove it.",
    ),
    "weight-clamped": Meaning(
        "weight {weight} is taken as {limit}",
        "scx_layered cuts weights off there; 0 stands for 100.",
        "Give 1 to 10000.",
    ),
    "yield-ignore-range": Meaning(
        "yield_ignore {value} is not from 0 to 1; a yield {does}",
        "It is the share of yields that is ignored: 0 gives up the slice, 1 ignores all.",
        "Give a share.",
    ),
    "util-range-unreached": Meaning(
        "a utilisation of {high} is never reached, so the layer does not grow",
        "CPUs are added where utilisation per CPU is above the upper end, and it is 1 at most unless time on "
        "other CPUs counts.",
        "Give an upper end below 1, or util_includes_open_cputime in a Grouped layer.",
    ),
    "layer-no-cpus": Meaning(
        "layer {name!r} may own no CPU at all",
        "A Grouped layer with cpus_range [0, 0] only ever runs on idle CPUs of others.",
        "Give it a CPU, or make it Open.",
    ),
    "layer-name-twice": Meaning(
        "the name {name!r} is taken by an earlier layer; statistics show one of them",
        "Statistics are kept by name.",
        "Give each layer a name of its own.",
    ),
    "slice-too-long": Meaning(
        "a slice of {seconds} s lets a thread keep a CPU that long",
        "slice_us is in microseconds; the default is 20 ms, and the kernel ejects a scheduler under which a "
        "thread waits too long (30 s).",
        "Give microseconds: 20000 is 20 ms.",
    ),
    "open-limits-early": Meaning(
        "the disallow_open and disallow_preempt limits of {name!r} act a thousand times earlier than they say",
        "scx_layered (1.1.2) fills its nanosecond limits for Open layers with microseconds, so that 40 ms of "
        "saturation are 40 us.",
        "Nothing to do; do not count on Open threads keeping a busy CPU for those times.",
    ),
    "hint-needs-map": Meaning(
        "HintEquals needs scx_layered --task-hint-map PATH, and threads that write their hint to it",
        "Without the map no thread has a hint, and the block matches none.",
        "Nothing to do if it is started so; CmdJoin needs no map.",
    ),
    "pid-stale": Meaning(
        "{matcher} holds until that process ends, and then for whoever gets its number",
        "Process numbers are not names.",
        "Match by name, cgroup or CmdJoin.",
    ),
    "cgroup-prefix-open": Meaning(
        "{prefix!r} also matches its siblings that begin alike; with a slash at the end it would not",
        "The prefix is compared as text with paths that end with a slash.",
        "Add a slash at the end if only that cgroup is meant.",
    ),
    "cpu-wait": Meaning(
        "waited for a CPU {share:.1%} of the time; {culprit} had it for {blame:.0%} of that",
        "The thread could run, but others had the CPU. While it waits, the accelerator that it feeds runs dry.",
        "Give it CPUs of its own (cpuset), or a higher weight (nice, cpu.weight) than the culprit's: strata host "
        "layers writes such a policy.",
    ),
    "gpu-idle-cpu-wait": Meaning(
        "{share:.0%} of the accelerator's idle time is this launching thread waiting for a CPU; {culprit} had it",
        "No kernel ran, since the thread that would have launched one had no CPU.",
        "Give the launching thread CPUs of its own (cpuset), near its accelerator: strata host layers does.",
    ),
    "cpu-preempted": Meaning(
        "taken off its CPU {times} times in the middle of its work, for {culprit} above all",
        "The kernel let another thread run although this one had work; its caches are cold when it is back.",
        "Lower the culprit's weight (nice 19, cpu.idle), or keep it off these CPUs (cpuset).",
    ),
    "irq-theft": Meaning(
        "{culprit} and other interrupts took {cost:.1f} ms of its CPU",
        "Interrupt handlers run on top of whatever thread is there, and do not show in its CPU time.",
        "Move the interrupt off the CPUs of critical threads (/proc/irq/N/smp_affinity_list, irqbalance bans).",
    ),
    "crosses-numa": Meaning(
        "moved to another NUMA node {times} times ({rate:.1f} a second)",
        "Its memory stays behind: each access crosses the sockets until the pages follow.",
        "Pin it to the CPUs of its accelerator's node (numactl, cpuset.cpus and cpuset.mems).",
    ),
    "crosses-llc": Meaning(
        "moved to another last-level cache {times} times ({rate:.1f} a second)",
        "What it keeps at hand about its tensors has to be read from memory again.",
        "Pin it to the CPUs of one last-level cache, or give them to it alone.",
    ),
    "yields-away": Meaning(
        "gave its CPU away by sched_yield {times} times, to {culprit}",
        "A thread that spins with sched_yield lets all others of its weight run first.",
        "Find who yields (OpenMP: OMP_WAIT_POLICY=active; communication proxies), or raise its weight.",
    ),
    "yield-storm": Meaning(
        "{culprit} calls sched_yield {rate:,.0f} times a second beside it",
        "Threads that wait by yielding keep their CPU busy with nothing but switches.",
        "Make the culprit block instead (OMP_WAIT_POLICY=passive), or keep it off these CPUs.",
    ),
    "pool-too-big": Meaning(
        "{threads} threads of {pool} want to run at once on {cpus} CPUs",
        "More threads than CPUs only wait for each other, and for everyone else.",
        "Make the pool smaller (OMP_NUM_THREADS, num_workers), start fewer processes, or give them fewer CPUs.",
    ),
    "fork-storm": Meaning(
        "{culprit} starts {rate:,.0f} threads a second beside it",
        "Each new thread wants a CPU at once, with cold caches; the kernel is busy with starting them.",
        "Keep the processes and reuse them, or give the culprit CPUs of its own.",
    ),
    "pin-conflict": Meaning(
        "shares CPU {cpu}, to which both seem to be pinned, with {culprit}",
        "A thread that may run on one CPU only waits there, however many others are idle.",
        "Remove one of the pins (taskset -p, OMP_PROC_BIND, cpuset), or pin to different CPUs.",
    ),
    "idle-cpu-beside": Meaning(
        "waited {cost:.1f} ms for {culprit} while another CPU was idle",
        "The kernel did not move it: a pin, a cpuset, or a cache or node that it did not want to leave.",
        "Widen its affinity (taskset, cpuset); if it has none, nothing to do.",
    ),
    "frequency-drop": Meaning(
        "ran at {mean:.2f} GHz where {highest:.2f} GHz were reached",
        "The CPU was clocked down: a governor that follows load, heat, or wide vector instructions.",
        "Set the performance governor or a floor (scaling_min_freq) on the CPUs of critical threads.",
    ),
    "straggler": Meaning(
        "of {ranks} threads {pool} it waits most: {beyond:.1%} of the time more than its like",
        "At the next collective all ranks wait for the slowest.",
        "Give every rank the same room: the same number of CPUs, none of them with the culprit.",
    ),
    "waker-waits": Meaning(
        "slept {cost:.1f} ms longer since {waker}, which wakes it, waited for {culprit}",
        "A chain of threads (a lock; transforms, loaders, trainer) is as slow as its slowest wait.",
        "Raise the waker's weight as well: it is on the critical path.",
    ),
    "thread-starved": Meaning(
        "waited {longest:.1f} s at a stretch and could have run",
        "No fair scheduler lets a thread wait so long: real-time threads or limits (cpu.max) do.",
        "Look for SCHED_FIFO threads and for cpu.max in its cgroup.",
    ),
    "trace-lost": Meaning(
        "{lost:,} events ({share:.1%}) were lost in recording",
        "The buffer was full: waits that span a loss are wrong, and culprits may be missing.",
        "Record with larger buffers (-m) or for a shorter time.",
    ),
    "trace-clock-back": Meaning(
        "the clock went back {times} times",
        "Events of one CPU are not in the order of their times; waits across such a place are wrong.",
        "Record with one clock for all CPUs (perf record -k mono, trace_clock mono).",
    ),
    "trace-damaged": Meaning(
        "{lines:,} lines are no events",
        "The file is no trace throughout, or in a form that is not known.",
        "Print it again: perf script -F comm,pid,tid,cpu,time,event,trace --ns.",
    ),
    "trace-cut": Meaning(
        "only the first {events:,} events were read",
        "The trace is larger than what is kept in memory.",
        "Record for a shorter time, or cut the trace (perf script --time).",
    ),
    "nothing-critical": Meaning(
        "no thread is named {asked}: nothing is known to hold up an accelerator",
        "Findings are about critical threads, and none was recognised by its name.",
        "Name yours: strata host report TRACE --critical PREFIX.",
    ),
    "rollout-noise-first": Meaning(
        "{pairs} of {wanted} A/A pairs: how far equal policies differ is not known yet",
        "A change means nothing before it is known how much two attempts differ that ran alike.",
        "Go on: all attempts run the baseline, and count.",
    ),
    "rollout-running": Meaning(
        "{change:+.1%} after {pairs} A/B pairs: not enough to tell it from noise",
        "The interval that may be looked at any time still holds no change.",
        "Go on, or let more jobs in (strata host rollout change --share).",
    ),
    "rollout-better": Meaning(
        "the candidate is better: {change:+.1%} over {pairs} pairs",
        "The change is above the noise, however often it was looked at.",
        "Make the candidate the policy of all jobs.",
    ),
    "rollout-worse": Meaning(
        "the candidate is worse: {change:+.1%} over {pairs} pairs",
        "The change is below the noise. From now on all attempts run the baseline.",
        "Record a trace under each policy (strata host record) and compare the reports.",
    ),
    "rollout-crashes": Meaning(
        "{candidate} attempts failed under the candidate where the baseline went on, {baseline} the other way",
        "If both failed alike, so uneven a count would be very unlikely. All attempts run the baseline.",
        "Look at the logs of the attempts that failed before it is tried again.",
    ),
    "rollout-jobs-worse": Meaning(
        "{jobs} of {of} jobs lost more than the guard allows twice in a row",
        "The mean may be fine, but some jobs suffer badly. All attempts run the baseline.",
        "Opt these jobs out, or mend the policy for them; then begin a new roll-out.",
    ),
    "rollout-no-difference": Meaning(
        "less than 1% between the policies, over {pairs} pairs",
        "The interval of the change lies within 1% of none.",
        "Keep the baseline: it is simpler.",
    ),
    "rollout-undecided": Meaning(
        "{change:+.1%} after all {pairs} pairs: still within noise",
        "The pairs that were planned are used up, and the change was smaller than they can show.",
        "Keep the baseline, or begin a roll-out with more pairs.",
    ),
    "rollout-stopped": Meaning(
        "stopped by hand",
        "Someone ended the roll-out: all attempts run the baseline.",
        "Nothing to do; begin a new roll-out to try again.",
    ),
    "rollout-opted-out": Meaning(
        "opted out by {rule}",
        "A rule keeps this job on the baseline; opting out wins over opting in.",
        "Nothing to do.",
    ),
    "rollout-not-opted-in": Meaning(
        "no rule opts it in",
        "The roll-out is for those who opted in.",
        "Opt it in: strata host rollout change NAME --opt-in job=....",
    ),
    "rollout-outside-share": Meaning(
        "not among the {share:.0%} of jobs that take part",
        "A hash of the job's name says who is in; who is in at one share is in at every larger one.",
        "Raise the share: strata host rollout change NAME --share.",
    ),
    "rollout-job-back": Meaning(
        "back on the baseline: it lost more than {guard:.0%} twice in a row",
        "The guard takes single jobs back while others go on.",
        "Record a trace of it under each policy and compare the reports.",
    ),
    "rollout-turn": Meaning(
        "attempt {number} of a pair: the turn of the {policy}",
        "The two attempts of a pair get one policy each, in an order drawn by lot.",
        "Nothing to do.",
    ),
}  # fmt: skip
