"""Reasons about clusters: where a gang goes, which nodes are out of service, which checkpoint is used."""

from __future__ import annotations

from typing import Final

from strata.reasons.meaning import Meaning, Meanings

CLUSTER: Final[Meanings] = {
    "gang-placed": Meaning(
        "{pods} pods of {devices} {model} on {nodes} nodes, within {level}, score {score:.3f}",
        "The best placement of the whole gang, by distance, links, fragmentation and fit.",
        "No action is needed.",
    ),
    "exchanged": Meaning(
        "{count}x {model} for {wanted}: {ratio:.2f} by {figure} (norm {norm}, {trust})",
        "The request was turned into devices of this model by its ACU vector, rounded up.",
        "Ask for another norm if another figure matters more (ai.compute/norm).",
    ),
    "fraction-of": Meaning(
        "{wanted} is {share:.0%} of the cores of {model} ({trust})",
        "A fraction's compute was turned into a share of one device by its ACU vector.",
        "No action is needed.",
    ),
    "more-than-one-device": Meaning(
        "asks for {share:.0%} of one device",
        "A fraction must fit on one device, and this model is too small for it.",
        "Ask for whole devices, or for a smaller fraction.",
    ),
    "devices-too-few": Meaning(
        "asks for {asked} devices, but the amounts need {need} ({ratio:.2f})",
        "The job gives a number of devices, but that many of this model do not provide the amounts it asks for.",
        "Omit the count, or ask for smaller amounts.",
    ),
    "no-profile": Meaning(
        "has no runtime profile (framework {framework}, profile {profile})",
        "No runtime profile says which image, environment and resource name this card needs.",
        "Add a RuntimeProfile for this model, or ask for another framework.",
    ),
    "substitution-not-allowed": Meaning(
        "is not the {wanted} that was requested, and the job accepts no substitute",
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
        "No action is needed; check the agent if the node should have some.",
    ),
    "placed-elsewhere": Meaning(
        "is not among the nodes the pod was placed on: {nodes}",
        "The pod was placed on other nodes before it was created, and its environment was made for those.",
        "No action is needed; the pod goes where it was placed.",
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
        "{free} of {total} devices are free, but a pod needs {need}",
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
        "has capacity for {room} of {pods} pods (within {level})",
        "The node could hold some of the pods, but a gang is placed as a whole or not at all.",
        "Wait, ask for fewer pods, or let the gang spread further.",
    ),
    "claim-unreadable": Meaning(
        "its request cannot be read: {why}",
        "The job's annotations, or the ComputeClaim it names, are missing, wrong or contradict each other.",
        "Correct what the message names; the job stays suspended until then.",
    ),
    "recreated": Meaning(
        "was created for a place under {profile} that is no longer free; there is capacity elsewhere",
        "What was injected into a pod cannot be changed; its owner creates a new pod, for a card that is free.",
        "No action is needed.",
    ),
    "release-refused": Meaning(
        "has a place, but the API server refuses to start it there: {why}",
        "The change of the job's template was rejected by the rules of its kind or by an admission policy.",
        "Follow the message; the release is retried every 30 s.",
    ),
    "gang-runs": Meaning(
        "{pods} pods of {devices} {model} on {nodes} nodes; the reasons were not recorded",
        "The controller that placed it stopped before it could record them.",
        "No action is needed.",
    ),
    "gang-moved": Meaning(
        "is suspended to be rescheduled: it holds devices that are out of service",
        "One of its devices is broken, or slow where the drain policy covers slow devices.",
        "No action is needed; it resumes from its newest complete checkpoint if ai.compute/checkpoint-dir names "
        "one.",
    ),
    "placement-lost": Meaning(
        "is suspended to be rescheduled: its place was taken before its pods were created; there is capacity "
        "elsewhere",
        "Single pods are placed as they are created; one of them was faster, and kube-scheduler found no "
        "capacity left.",
        "No action is needed.",
    ),
    "gang-fits-nowhere": Meaning(
        "{pods} pods fit nowhere on {nodes} nodes",
        "No card model has enough free devices for the whole gang now.",
        "The relaxations listed with it say what would help; the gang waits until then.",
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
        "The smallest relaxation found: this many free devices would hold the gang.",
        "Wait, or add nodes.",
    ),
    "node-isolated": Meaning(
        "{what}: taken out of service (time {times})",
        "A device of the node is broken, or slow against its own model's cohort; the node is tainted, because "
        "neither kube-scheduler nor a device plugin can leave out one device.",
        "Repair or reset the devices; the node returns by itself once they have been well for long enough.",
    ),
    "isolation-waits": Meaning(
        "{what}: should be isolated, but the budget of isolated nodes is used up",
        "As many nodes are isolated as the budget allows. The node gets the soft form of the taint instead.",
        "Repair the nodes that are out. If many fail at once, look for what they have in common.",
    ),
    "node-released": Meaning(
        "has been healthy for long enough and is back in service",
        "The node's devices were healthy without interruption for the time that its number of relapses requires.",
        "No action is needed.",
    ),
    "standing-unreadable": Meaning(
        "its annotation {key} was not written by strata ({fault})",
        "The record of the node's isolation cannot be read; if the node is tainted, it counts as isolated from "
        "now on.",
        "Remove the annotation; only the controller should write it.",
    ),
    "checkpoint-unfinished": Meaning(
        "is still being written, or was left unfinished: {what}",
        "A file has a temporary name, was written moments ago, or is newer than the file that completes a "
        "checkpoint.",
        "No action is needed; an older one is used. A marker (.complete) makes a fresh one usable at once.",
    ),
    "checkpoint-incomplete": Meaning(
        "{what}",
        "Files that its index, its file names or older checkpoints say it should have are missing or empty.",
        "No action is needed; an older one is used.",
    ),
    "checkpoint-torn": Meaning(
        "is truncated: {what}",
        "A file is shorter than its own header says, or its index cannot be read.",
        "No action is needed; an older one is used. Check the storage if this recurs.",
    ),
    "checkpoint-unannounced": Meaning(
        "is beyond step {what}, the last that its writer announced",
        "The tracker file beside it names an older step: it was never finished, or was rolled back.",
        "No action is needed; an older one is used.",
    ),
    "checkpoint-unknown": Meaning(
        "has an unknown layout: {what}",
        "It is not a torch, Megatron, DeepSpeed or Hugging Face checkpoint, and it is not marked as complete.",
        "Write an empty file .complete into it as the last step of saving.",
    ),
    "checkpoint-unreadable": Meaning(
        "{why}",
        "The folder that a job names for its checkpoints does not exist, is outside the controller's folder, or "
        "cannot be "
        "read.",
        "Name a readable folder inside the one given to the controller (--checkpoints).",
    ),
    "no-peer-access": Meaning(
        "devices of a node cannot reach each other's memory",
        "Peer access is off or missing; collectives go through the host, and the environment says so.",
        "No action is needed; enable peer access if the hardware supports it.",
    ),
}  # fmt: skip
