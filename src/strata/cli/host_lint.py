"""`strata host lint`: what is wrong with a policy of scx_layered, and what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from strata.cli.output import emit, output_option
from strata.errors import GoalMissed
from strata.tables import Line, Shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.host.policy.codec import ParsedPolicy
    from strata.host.policy.lint.explain import Explained
    from strata.host.policy.lint.finding import LintFinding
    from strata.host.policy.lint.room import TargetMachine


@click.command()
@click.argument("file")
@click.option("--explain", "is_explained", is_flag=True, help="Say in words what the policy does.")
@click.option("--elsewhere", is_flag=True, help="The policy is for another machine: ask nothing of this one.")
@output_option
def lint(file: str, is_explained: bool, elsewhere: bool, output: str) -> None:
    """Find what scx_layered refuses in a policy FILE, and what it takes without a word and does not do.

    CPUs, NUMA nodes and what the kernel can do are those of this machine. Exits 4 if any finding is an error.

    \b
    strata host lint policy.json
    strata host lint policy.json --explain --elsewhere
    """
    from strata.host.policy.codec import load
    from strata.host.policy.lint.explain import explain
    from strata.host.policy.lint.policy import lint as findings_of

    policy = load(file)
    findings = findings_of(policy, site=None if elsewhere else _here())
    words = explain([layer for layer in policy.layers if layer is not None]) if is_explained else ()
    data: dict[str, Any] = {"findings": [finding.to_dict() for finding in findings]}
    if is_explained:
        data["layers"] = [{"name": entry.name, "who": entry.who, "how": list(entry.how)} for entry in words]
    emit(data, output, _show(file, policy, findings, words))
    errors = sum(finding.severity == "error" for finding in findings)
    if errors:
        raise GoalMissed(f"{file}: {errors} {'error' if errors == 1 else 'errors'}")


def _here() -> TargetMachine:
    from strata.host.machine import cpus, kernel
    from strata.host.policy.lint.room import TargetMachine

    return TargetMachine(cpus.probe(), kernel.probe())


def _show(file: str, policy: ParsedPolicy, findings: Sequence[LintFinding], words: Sequence[Explained]) -> Shown:
    yield from show_words(words)
    if not findings:
        yield f"{file}: ok"
    for finding in findings:
        shown = finding.to_dict()
        where = f"{shown['path']}: " if shown["path"] else ""
        line, column = policy.place(shown["path"])
        yield Line(f"{file}:{line}:{column}: {shown['severity']}: {shown['token']}", style="bold", is_whole=True)
        yield Line(f"{where}{shown['sentence']}", indent="  ", hang="    ")


def show_words(words: Sequence[Explained]) -> Shown:
    """Print layers in words."""
    for index, layer in enumerate(words):
        yield Line(f"{index + 1}. {layer.name}", style="bold")
        for sentence in (layer.who, *layer.how):
            yield Line(sentence, indent="  ", hang="    ")
