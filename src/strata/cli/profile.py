"""`strata profile`: how long a model's layers take on a device that is here, as a profile file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strata.cli.output import emit, output_option, progress
from strata.cli.parameters import POSITIVE, OutputFile, Whole, choice
from strata.errors import BadFile, MissingPart, UsageError, need
from strata.tables import Shown, rows

if TYPE_CHECKING:
    from strata.workload.model import ModelSpec


def _sizes(_context: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        sizes = ()
    if not sizes or not 1 <= min(sizes) <= max(sizes) <= 4096:
        raise click.BadParameter("whole numbers from 1 to 4096, for example 1,2,4", param=option)
    return sizes


@click.command()
@click.argument("model")
@click.option("--microbatch", default="1", callback=_sizes, metavar="N,...", help="Samples of a microbatch.")
@click.option("--tensor", default="1", callback=_sizes, metavar="N,...", help="Tensor-parallel degrees.")
@click.option("--sequence", type=Whole(1, 10**8), help="Tokens of a sample, as in the job.  [default: 4096]")
@click.option(
    "--precision", type=choice("bf16", "fp16", "fp32"), default="bf16", help="Of weights and activations."
)
@click.option("--device", type=choice("auto", "cpu", "cuda"), default="auto", help="What computes.")
@click.option("--accelerator", help="Its name in the fleet file.  [default: what the device calls itself]")
@click.option(
    "--repeats", default=5, type=POSITIVE, help="Rounds, at least, to take the median of; small layers get more."
)
@click.option("--save", type=OutputFile(), help="Write the profile file, or add to it.")
@output_option
def profile(
    model: str, microbatch: tuple[int, ...], tensor: tuple[int, ...], sequence: int | None, precision: str,
    device: str, accelerator: str | None, repeats: int, save: Path | None, output: str
) -> None:  # fmt: skip
    """Time the layers of MODEL on a device of this machine: forward, backward, optimizer.

    MODEL is a config.json, a folder with one, or a shipped name. A job reads the file as `profile: times.json`,
    and its times go before every estimate. One layer of each kind must fit a device. Needs torch; on several
    devices, --tensor 2 also times layers that two of them share.

    \b
    strata profile llama-3.1-8b --sequence 8192 --microbatch 1,2 --save times.json
    strata profile ./my-model --device cpu --accelerator "my CPU" --repeats 3
    """
    need("torch", extra="train")
    from strata.workload.huggingface import model as read_model
    from strata.workload.layer_timing import Conditions, TimedLayer, time_layers

    spec = read_model(model)
    device = _device(device)
    card = _card(device, accelerator)
    longest = spec.max_sequence_length or 10**8
    if sequence is not None and sequence > longest:
        raise UsageError(
            f"{spec.name} has learned positions for {longest} tokens only", hint=f"--sequence {longest}"
        )
    length = sequence or min(4096, longest)
    measured: dict[tuple[int, int], dict[str, TimedLayer]] = {}
    with progress("timing", total=len(tensor)) as advance:
        for count, ranks in enumerate(tensor, 1):
            times = time_layers(spec, Conditions(length, microbatch, ranks, precision, device, repeats))
            measured |= {(size, ranks): layers for size, layers in times.items()}
            advance(count)
    measured = {(size, ranks): measured[size, ranks] for size in microbatch for ranks in tensor}
    profile = {card: {f"{size},{ranks}": _row(spec, times) for (size, ranks), times in measured.items()}}
    if save:
        _save(save, profile, num_layers=len(spec.kinds))
    data = {
        "model": spec.name, "accelerator": card, "device": device, "sequence_length": length,
        "precision": precision, "trust": "measured", "profile": profile,
    }  # fmt: skip
    emit(data, output, _show(data, spec, measured, save))


def _device(device: str) -> str:
    import torch

    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise MissingPart("torch sees no CUDA device here", hint="--device cpu")
    return ("cuda" if has_cuda else "cpu") if device == "auto" else device


def _card(device: str, name: str | None) -> str:
    """Return the accelerator's name as fleets have it."""
    from strata.fleet import catalogue

    if name is not None:
        return name
    if device == "cpu":
        return "CPU"
    import torch

    own = str(torch.cuda.get_device_name())
    try:
        return catalogue.accelerator(own).name
    except UsageError as error:
        raise UsageError(
            f"{own} is not in the catalogue", hint="--accelerator NAME, as in the fleet file"
        ) from error


def _row(spec: ModelSpec, times: dict[str, Any]) -> dict[str, list[float]]:
    return {
        key: [getattr(times[kind], key) for kind in spec.kinds] for key in ("forward_s", "backward_s", "update_s")
    }


def _save(path: Path, profile: dict[str, dict[str, Any]], *, num_layers: int) -> None:
    """Write a profile file, or add to it. Raises BadFile where it is another model's or contradicts itself."""
    from strata.files import read_json, write_json
    from strata.workload.profile import checked_profile, load_profile

    known: dict[str, dict[str, Any]] = {}
    if path.exists():
        load_profile(path, num_layers=num_layers)
        known = read_json(path)
    whole = {**known, **{card: {**known.get(card, {}), **rows} for card, rows in profile.items()}}
    try:
        checked_profile(whole, source=f"{path} (not written)", num_layers=num_layers)
    except BadFile as error:
        raise BadFile(error.faults, hint="a machine with nothing else to do, or more --repeats") from None
    write_json(path, whole)


def _show(data: dict[str, Any], spec: ModelSpec, measured: dict[tuple[int, int], Any], save: Path | None) -> Shown:
    from strata.units import show_time

    length, precision = data["sequence_length"], data["precision"]
    yield f"{data['model']} on {data['accelerator']}, {length} tokens a sample, {precision}, measured"
    body = [
        [f"{size},{ranks}", kind if (count := spec.kinds.count(kind)) == 1 else f"{kind} x {count}",
         *(show_time(seconds) for seconds in (layer.forward_s, layer.backward_s, layer.update_s))]
        for (size, ranks), times in measured.items() for kind, layer in times.items()
    ]  # fmt: skip
    yield rows(["microbatch,tensor", "layer", "forward", "backward", "update"], body, right=range(2, 5))
    if save:
        yield f"written to {save}; in the job: `profile: {save.name}`"
    else:
        yield "next: --save times.json, and `profile: times.json` in the job"
