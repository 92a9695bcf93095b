"""Reasons of the scheduler that runs: why a job runs where it runs, or waits."""

from __future__ import annotations

from typing import Final

from strata.reasons.meaning import Meaning, Meanings

CONTROL: Final[Meanings] = {
    "training-placed": Meaning(
        "{plan}: {rate:.1%} of the best nominal rate with links as they are",
        "The job starts on the plan that is expected to earn most on the devices that are free.",
    ),
    "training-kept": Meaning(
        "kept {plan}: {rate:.1%} of the best nominal rate with links as they are",
        "No other plan is expected to earn back a restart and its moved weights.",
    ),
    "training-shrunk": Meaning(
        "goes on as {plan} with {devices} devices, so that {waiting} has room",
        "An elastic job gives up devices, down to its least, for a job of larger priority or an owner who holds "
        "less for its weight. It grows again when nobody waits and that pays the restart.",
    ),
    "training-switched": Meaning(
        "{before} -> {plan}: {rate:.1%} -> {now:.1%} of the best nominal rate, {gain:.3g} decisions' worth earned "
        "after the switch is paid",
        "Over the decisions ahead the other plan is expected to earn more than a restart and moved weights cost.",
    ),
    "waits-for-devices": Meaning(
        "waits: its smallest plan takes {devices} devices that are free together",
        "No plan of the job fits the devices that are free now.",
        "Wait, add devices, or allow smaller plans with min_devices.",
    ),
    "tried-again-later": Meaning(
        "attempt {attempt} failed before it got any further ({message}): tried again in {delay}, failure "
        "{failures} of {most} that are allowed",
        "What fails at once mostly fails again: the wait doubles each time, up to five minutes.",
        "strata logs NAME says what the ranks wrote.",
    ),
    "given-up": Meaning(
        "given up at failure {failures}, as {most} are allowed; attempt {attempt} ended with: {message}; {steps} "
        "of {of} steps are in checkpoints",
        "What failed so often will fail again. Checkpoints stay where they are.",
        "strata logs NAME says what the ranks wrote; mend it and submit the job under another name.",
    ),
    "domains-cannot-meet": Meaning(
        "{a} and {b} cannot work on one job together: {why}",
        "Ranks of one job reach each other and share its checkpoints, which these drivers cannot give them: no "
        "plan over both is made.",
        "Give a local or Slurm domain an `address` that the others reach; pods go with pods alone.",
    ),
    "no-plan-allowed": Meaning(
        "its plans on this fleet take {counts} devices, and the job allows {least} to {most}",
        "Plans hold the job, but none with a number of devices between its min_devices and max_devices.",
        "Change min_devices or max_devices.",
    ),
    "no-plan-fits": Meaning(
        "no plan of this job fits the fleet",
        "Even with all devices free no plan holds the job's memory and limits.",
        "strata plan train says what would help.",
    ),
}
