"""What `strata serve gateway` and `strata serve worker` are told of the model: a folder, or the made-up one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from strata.cli.parameters import POSITIVE, Whole
from strata.errors import UsageError, need

if TYPE_CHECKING:
    from strata.serving.pretrained.folder import ModelFolder
    from strata.serving.worker.shape import Shape

F = TypeVar("F", bound=Callable[..., Any])

MADE_UP = ("layers", "hidden", "seed")


def model_options(command: F) -> F:
    """Give a command the options that say which model."""
    for option in (
        click.option("--seed", type=Whole(0, 10**9), default=0, help="Random seed of its weights."),
        click.option("--hidden", type=POSITIVE, default=128, help="Hidden size of that model."),
        click.option("--layers", type=POSITIVE, default=12, help="Layers of the made-up model, without --model."),
        click.option(
            "--model",
            "folder",
            type=click.Path(),
            metavar="FOLDER",
            help="A model's folder as Hugging Face lays it out: config, tokenizer, safetensors.",
        ),
    ):
        command = option(command)
    return command


def hosted(options: dict[str, Any]) -> ModelFolder | Shape:
    """Return the model that the options name. Raises UsageError where they name two, BadFile for a bad folder."""
    from pathlib import Path

    from strata.serving.pretrained.folder import read_folder
    from strata.serving.worker.shape import Shape

    if options["folder"] is None:
        return Shape(num_layers=options["layers"], hidden_size=options["hidden"], seed=options["seed"])
    context = click.get_current_context()
    for name in MADE_UP:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise UsageError(f"--{name} is of the made-up model, and --model names another", hint="one of the two")
    need("transformers", extra="models")
    return read_folder(Path(options["folder"]))
