"""`strata submit`, `jobs`, `job`, `logs`, `cancel`, `drain`: what users do with a scheduler that runs."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from strata.cli.completing import DOMAIN, RUNNING_JOB
from strata.cli.output import emit, output_option, show
from strata.cli.parameters import PATH
from strata.tables import Shown, rows

if TYPE_CHECKING:
    from strata.control.client import Client

_DECIDED_S: Final = 30.0
_ASK_S: Final = 0.2
_NEXT: Final = {
    "queued": "strata job {} --why", "failed": "strata logs {}, mend it, and submit it under another name",
}  # fmt: skip
"""What to try with a job that does not run, by its phase."""

Command = TypeVar("Command", bound=Callable[..., Any])


def _server_option(command: Command) -> Command:
    return click.option(
        "--server", envvar="STRATA_SERVER", default="http://127.0.0.1:8470", help="Address of `strata up`."
    )(click.option("--token-file", type=click.Path(), help="File with its token; or STRATA_TOKEN.")(command))


def _client(server: str, token_file: str | None) -> Client:
    from strata.cli.tokens import token_of
    from strata.control.client import Client

    return Client(server.rstrip("/"), token_of(token_file))


@click.command()
@click.argument("job", type=PATH)
@click.option("--strict", is_flag=True, help="Refuse a job that could not run if every device were free.")
@_server_option
@output_option
def submit(job: Path, strict: bool, server: str, token_file: str | None, output: str) -> None:
    """Hand a training JOB with a `run:` section to the scheduler; once this returns it is not lost.

    \b
    strata submit job.yaml
    strata job NAME --why

    Says where it goes and why. A job that nobody can hold waits for another fleet, with what would help; --strict
    refuses it.
    """
    from strata.control.jobfile import read_job

    client = _client(server, token_file)
    _, piece = read_job(job)
    name = client.submit(piece, is_strict=strict)
    decision = _first_decision(client, name)
    refusals = client.prospects(name) if decision is not None and decision["choice"] is None else []
    emit({"name": name, "decision": decision, "refusals": refusals}, output, _submitted(name, decision, refusals))


def _first_decision(client: Client, name: str) -> dict[str, Any] | None:
    """Return what was decided about a new job; None where that takes long."""
    deadline = time.monotonic() + _DECIDED_S
    while time.monotonic() < deadline:
        decisions: list[dict[str, Any]] = client.job(name)["decisions"]
        if decisions:
            return decisions[0]
        time.sleep(_ASK_S)
    return None


def _submitted(name: str, decision: dict[str, Any] | None, refusals: list[dict[str, Any]]) -> Shown:
    if decision is None:
        yield f"{name} is submitted; where it goes and why: strata job {name} --why"
        return
    yield f"{name} is submitted"
    if refusals:
        yield from _queued(refusals)
        return
    yield from _decision_shown(decision)


@click.command()
@_server_option
@output_option
def jobs(server: str, token_file: str | None, output: str) -> None:
    """List the jobs of the scheduler, as they were submitted.

    \b
    strata jobs
    strata jobs -o json
    """
    client = _client(server, token_file)
    data = client.jobs()
    emit(data, output, _jobs_table(data, client.domains() if output == "table" else []))


@click.command()
@click.argument("name", type=RUNNING_JOB)
@click.option("--why", is_flag=True, help="Show every decision about it, and what else there was.")
@click.option("--watch", is_flag=True, help="A line whenever it changes, until it is over; -o json: only then.")
@_server_option
@output_option
def job(name: str, why: bool, watch: bool, server: str, token_file: str | None, output: str) -> None:
    """Show one job: where it runs, its attempts, and with --why the decisions behind them.

    \b
    strata job small --why
    strata job small --watch
    """
    client = _client(server, token_file)
    data = client.job(name)
    if watch:
        from strata.control.state import JobPhase

        line, is_over = "", False
        for every in client.events():
            state = next(item for item in every if item["name"] == name)
            if output == "table" and (text := _line(state)) != line:
                line = text
                show([line])
            if is_over := JobPhase(state["phase"]).is_final:
                break
        if is_over and output == "table" and not why:
            return
        data = client.job(name)  # asked in vain where the scheduler has stopped, which says so
    if why and data["phase"] == "queued" and data["decisions"] and data["decisions"][-1]["choice"] is None:
        data = {**data, "refusals": client.prospects(name)}
    emit(data, output, _job_shown(data, why=why))


@click.command()
@click.argument("name", type=RUNNING_JOB)
@click.option("-f", "--follow", is_flag=True, help="Go on until the attempt is over.")
@_server_option
def logs(name: str, follow: bool, server: str, token_file: str | None) -> None:
    """Print what the ranks of a job's newest attempt wrote.

    \b
    strata logs small -f
    """
    client, is_empty = _client(server, token_file), True
    for line in client.logs(name, follow=follow):
        click.echo(line)
        is_empty = False
    if follow or is_empty:
        phase = client.job(name)["phase"]  # where the scheduler has stopped, that is what ended the log
        if is_empty:
            click.echo(f"{name} is {phase}: nothing was written", err=True)


@click.command()
@click.argument("name", type=RUNNING_JOB)
@_server_option
def cancel(name: str, server: str, token_file: str | None) -> None:
    """End a job: it is asked to save, if it can, then killed after its grace.

    \b
    strata cancel small
    """
    from strata.control.state import JobPhase

    client = _client(server, token_file)
    before = client.job(name)
    client.cancel(name)
    request = "is asked to save and to end" if before.get("can_resume") else "is asked to end"
    ends = request if before["domains"] else "is taken out of the queue"
    is_over = JobPhase(before["phase"]).is_final
    show([f"{name} is {before['phase']}: nothing to end" if is_over else f"{name} {ends}"])


@click.command()
@click.argument("domain", type=DOMAIN)
@click.option("--undo", is_flag=True, help="Let work go there again.")
@_server_option
def drain(domain: str, undo: bool, server: str, token_file: str | None) -> None:
    """Start nothing new in a DOMAIN and move away what runs there.

    \b
    strata drain west
    strata drain west --undo

    A job whose file does not say `run: {resume: true}` cannot go on elsewhere: it stays until it ends.
    """
    client = _client(server, token_file)
    client.drain(domain, is_drained=not undo)
    jobs = [] if undo else client.jobs()
    show([f"{domain}: {'work goes there again' if undo else 'nothing new starts there'}"])
    for item in jobs:
        if domain in item["domains"]:
            stays = f"stays until it ends, as it cannot resume elsewhere; strata cancel {item['name']} ends it"
            show([f"  {item['name']} {'saves, then moves or waits' if item.get('can_resume') else stays}"])


def _jobs_table(data: list[dict[str, Any]], domains: list[dict[str, Any]]) -> Shown:
    yield _rows(data) if data else "no jobs; strata submit JOB"
    if drained := [item["name"] for item in domains if item["is_drained"]]:
        yield f"drained, so that nothing starts there: {', '.join(drained)}; strata drain DOMAIN --undo"
    for item in domains:
        if item["silent_since_s"] is not None:
            yield f"not answering: {item['name']}" + (f": {item['silence']}" if item.get("silence") else "")


def _rows(data: list[dict[str, Any]]) -> Any:
    return rows(
        ("job", "phase", "steps", "a step", "on", "attempts"),
        (
            (
                item["name"], item["phase"], _steps(item), _step_time(item), ", ".join(item["domains"]),
                str(item.get("attempts_made", 0)),
            )
            for item in data
        ),
        right=(2, 3, 5),
    )  # fmt: skip


def _line(item: dict[str, Any]) -> str:
    where = f" on {', '.join(item['domains'])}" if item["domains"] else ""
    stopping = ", stopping" if item.get("is_stopping") else ""
    return (
        f"{item['name']}: {item['phase']}{where}, step {_steps(item)}, {_step_time(item) or '-'} a step{stopping}"
    )


def _how(exit_code: int | None) -> str:
    """Return how a part ended; below zero is the number of the signal that killed it, as Python has it."""
    if exit_code is None:
        return ""
    with suppress(ValueError):
        return f", killed by {signal.Signals(-exit_code).name}"
    return f", exit code {exit_code}"


def _job_shown(data: dict[str, Any], *, why: bool) -> Shown:
    yield _line(data)
    for attempt in data["attempts"]:
        ended = f"; left because: {attempt['reason']}" if attempt["reason"] else ""
        steps = f"steps {attempt['from_step']} to {attempt['step']}"
        count = attempt.get("num_devices")  # not told by an older scheduler
        size = f" ({count} device{'s' * (count > 1)})" if count else ""
        yield f"  attempt {attempt['number']}: {attempt['plan_name']}{size}, {steps}{ended}"
        for name, part in attempt["parts"].items():
            message = f": {part['message']}" if part["message"] else ""
            yield f"    {name}: {part['phase']}{_how(part['exit_code'])}{message}"
    if data["phase"] in _NEXT and data["decisions"] and not why:
        yield from (f"  {reason['text']}" for reason in data["decisions"][-1]["reasons"])
        yield f"  try: {_NEXT[data['phase']].format(data['name'])}"
    for decision in data["decisions"] if why else ():
        yield time.strftime("\n%Y-%m-%d %H:%M:%S", time.localtime(decision["at_s"]))
        yield from _decision_shown(decision)
    if refusals := data.get("refusals"):
        yield from _queued(refusals)


def _queued(refusals: list[dict[str, Any]]) -> Shown:
    yield "queued until the fleet is another one:"
    yield from (f"  {reason['text']}" for reason in refusals)


def _decision_shown(decision: dict[str, Any]) -> Shown:
    from strata.units import show_time

    step = decision["step_time_s"]
    expected = f"; {show_time(step)} a step expected" if step is not None else ""
    yield from (f"{reason['text']}{expected}" for reason in decision["reasons"])
    for other in decision["alternatives"]:
        share = other["cost"].get("share_of_nominal")
        yield f"  {other['name']}" + (f": {share:.0%} of the best nominal rate" if share is not None else "")
        yield from (f"    {reason['text']}" for reason in other["reasons"])


def _steps(item: dict[str, Any]) -> str:
    return f"{item['steps_done']}/{item['steps'] or '?'}"


def _step_time(item: dict[str, Any]) -> str:
    from strata.units import show_time

    return show_time(item["step_time_s"]) if item.get("step_time_s") else ""
