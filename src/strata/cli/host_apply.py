"""`strata host apply` and `strata host undo`: take the steps of a policy, and take them back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from strata.cli.output import emit, output_option
from strata.errors import Infeasible, MissingPart, StrataError
from strata.tables import Line, Shown, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.decision import Reason
    from strata.host.apply.act import StepOutcome
    from strata.host.apply.undo import UndoOutcome


@click.command()
@click.argument("policy")
@click.option("--dry-run", is_flag=True, help="Show what would be done and the current state; change nothing.")
@output_option
def apply(policy: str, dry_run: bool, output: str) -> None:
    """Apply the steps of POLICY, as `strata host layers --plain -o json` writes them.

    The state before each step is on disk before the step is taken: `strata host undo` restores it, also after a
    crash. Steps already in effect stay; threads that have ended are skipped. Nothing is done if a step would
    starve someone (exit 3), and everything is undone if the kernel refuses a step.

    \b
    strata host layers --plain -o json > policy.json
    strata host apply policy.json --dry-run
    strata host apply policy.json
    strata host undo
    """
    from strata.host.apply.act import apply as take
    from strata.host.apply.act import preview
    from strata.host.apply.journal import folder_of, opened
    from strata.host.apply.machine import KernelFiles
    from strata.host.apply.policy import load
    from strata.host.apply.refuse import refusals, residents
    from strata.host.signals import stoppable

    steps, machine = load(policy), KernelFiles()
    refused = refusals(steps, residents())
    if dry_run or refused:
        outcomes = preview(steps, machine)
    else:
        with stoppable(), opened(folder_of(os.environ, user=os.geteuid())) as journal:
            if journal.off.exists():
                raise Infeasible(f"the kill switch is set: {journal.off}", hint=f"rm {journal.off}")
            outcomes = take(steps, machine, journal)
    data = {
        "is_dry_run": dry_run or bool(refused),
        "steps": [item.to_dict() for item in outcomes],
        "refusals": [item.to_dict() for item in refused],
    }
    emit(data, output, _show(outcomes, refused))
    if refused:
        raise Infeasible(f"{policy}: nothing was done: {refused[0]}")


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would be restored; change nothing.")
@click.option(
    "--off", is_flag=True, help="Also set the kill switch: nothing is applied until its file is removed."
)
@output_option
def undo(dry_run: bool, off: bool, output: str) -> None:
    """Restore the state before `strata host apply`, newest change first.

    What others changed since is reported and left alone; threads that have ended need nothing. Also works after a
    crash in the middle of applying or undoing. What cannot be restored stays in the journal, and exits 1.

    \b
    strata host undo --dry-run
    strata host undo
    """
    from strata.host.apply.journal import folder_of, opened
    from strata.host.apply.machine import KernelFiles
    from strata.host.apply.undo import undo as take_back

    with opened(folder_of(os.environ, user=os.geteuid())) as journal:
        if off and not dry_run:
            journal.off.touch()
        changes = take_back(KernelFiles(), journal, is_dry=dry_run)
        data = {"changes": [change.to_dict() for change in changes], "is_off": journal.off.exists()}
        emit(data, output, _show_undone(changes))
        if data["is_off"]:
            click.echo(f"nothing is applied while this file is there: {journal.off}", err=True)
    failed = [change for change in changes if change.result == "failed"]
    if failed:
        step = failed[0].record.step
        what = f"{step.act} {step.path}: {failed[0].why}"
        if os.geteuid() != 0:
            raise MissingPart(what, hint="sudo strata host undo")
        raise StrataError(f"{len(failed)} changes could not be put back: {what}", hint="strata host undo, again")


def _show(outcomes: Sequence[StepOutcome], refused: Sequence[Reason]) -> Shown:
    if outcomes:
        body = (
            (
                outcome.result,
                outcome.step.act,
                outcome.step.path,
                _change(outcome),
                outcome.why or outcome.step.why,
            )
            for outcome in outcomes
        )
        yield rows(("", "do", "where", "what", "why"), body)
    for refusal in refused:
        yield Line(f"refused: {refusal.token}: {refusal}", is_whole=True)
    if not outcomes:
        yield "nothing to do"


def _change(outcome: StepOutcome) -> str:
    if outcome.step.act in ("attach", "mkdir", "migrate") or outcome.result == "already":
        return outcome.step.value
    return f"{' '.join(outcome.before.split()) or '-'} → {outcome.step.value}"


def _show_undone(changes: Sequence[UndoOutcome]) -> Shown:
    if not changes:
        yield "nothing to undo"
        return
    body = (
        (
            change.result,
            change.record.step.act,
            change.record.step.path,
            change.record.before.strip() or "-",
            change.why,
        )
        for change in changes
    )
    yield rows(("", "undo", "where", "before", "why"), body)
