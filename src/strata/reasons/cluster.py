"""Of clusters: where a gang goes, who is out, which checkpoint counts."""

from __future__ import annotations

from typing import Final

from strata.reasons.meaning import Meaning, Meanings

CLUSTER: Final[Meanings] = {
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
        "has no runtime profile (framework {framework}, profile {profile})",
        "No runtime profile says which image, environment and resource name such a card needs.",
        "Add a RuntimeProfile for this model, or ask for another framework.",
    ),
    "substitution-not-allowed": Meaning(
        "is not the {wanted} that was asked for, and the job accepts no substitute",
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
        "The devices are used by other pods.",
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
        "its request cannot be read: {why}",
        "The job's annotations, or the ComputeClaim it names, are missing, wrong or contradict each other.",
        "Correct what the message names; the job stays suspended until then.",
    ),
    "recreated": Meaning(
        "was created for a place under {profile} that is taken, and there is room elsewhere",
        "What was injected into a pod cannot be changed; its owner creates another, for a card that is free.",
        "Nothing to do.",
    ),
    "release-refused": Meaning(
        "has a place, but the API server refuses to start it there: {why}",
        "The change of the job's template was rejected by the rules of its kind or by an admission policy.",
        "Follow the message; the release is retried every 30 s.",
    ),
    "gang-runs": Meaning(
        "{pods} pods of {devices} {model} on {nodes} nodes; the reasons were not recorded",
        "The controller that placed it stopped before it could record them.",
        "Nothing to do.",
    ),
    "gang-moved": Meaning(
        "is suspended to be rescheduled: it holds devices that are out of service",
        "One of its devices is broken, or slow where the drain policy covers slow devices.",
        "Nothing to do; it goes on from its newest complete checkpoint where ai.compute/checkpoint-dir names one.",
    ),
    "placement-lost": Meaning(
        "is suspended to be rescheduled: its place was taken before its pods came, and there is room elsewhere",
        "Single pods are placed as they are created; one was faster, and kube-scheduler found no room left.",
        "Nothing to do.",
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
        "{what}: should be isolated, but as many nodes are out as the budget allows",
        "The budget of simultaneous isolations is used up. The node has the soft form of the taint.",
        "Repair the nodes that are out. Where many fail at once, suspect what they share.",
    ),
    "node-released": Meaning(
        "has been well for long enough and is back in service",
        "The node's devices were well without a break for the time its relapses ask for.",
        "Nothing to do.",
    ),
    "standing-unreadable": Meaning(
        "its annotation {key} was not written by strata ({fault})",
        "What was remembered of the node's isolation cannot be read; it counts as out since now if it is tainted.",
        "Remove the annotation; only the controller should write it.",
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
        "is truncated: {what}",
        "A file is shorter than its own header says, or its index cannot be read.",
        "Nothing to do; an older one is used. Check the storage if this recurs.",
    ),
    "checkpoint-unannounced": Meaning(
        "is beyond step {what}, the last that its writer announced",
        "The tracker file beside it names an older step: it was never finished, or was rolled back.",
        "Nothing to do; an older one is used.",
    ),
    "checkpoint-unknown": Meaning(
        "has an unknown layout: {what}",
        "It is not a torch, Megatron, DeepSpeed or Hugging Face checkpoint, and is not marked as complete.",
        "Write an empty file .complete into it as the last step of saving.",
    ),
    "checkpoint-unreadable": Meaning(
        "{why}",
        "The folder a job names for its checkpoints is absent, not below the controller's, or cannot be read.",
        "Name a folder below what the controller was given (--checkpoints), which it may read.",
    ),
    "no-peer-access": Meaning(
        "devices of a node cannot reach each other's memory",
        "Peer access is off or missing; collectives go through the host, and the environment says so.",
        "Nothing to do; switch peer access on if the hardware has it.",
    ),
}  # fmt: skip
