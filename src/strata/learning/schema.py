"""Training files: `kind: HiPpoTraining`, the settings of `strata learn train`. Every key may be left out.

Keys, types and defaults are those of `LearningSettings`, so they are written once.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_type_hints

from pydantic import Field, create_model

from strata.errors import BadFile, UsageError
from strata.files import FileModel, read_document
from strata.learning.settings import LearningSettings

RECIPE: Final = Path(__file__).with_name("recipe.yaml")
"""What the bundled policy was trained with."""

_BOUNDS: Final[dict[str, Any]] = {
    "seed": Field(strict=True, ge=0), "warm_start_tables": Field(strict=True, ge=0),
    "critic_first": Field(strict=True, ge=0),
    "entropy": Field(ge=0), "augmentation": Field(ge=0), "keep": Field(ge=0),
    "gamma": Field(gt=0, lt=1), "gae_lambda": Field(ge=0, le=1), "astray": Field(ge=0, le=1),
}  # fmt: skip
"""Where it is not simply above 0."""


def _model(of: Any, **more: Any) -> type[FileModel]:
    """Return the file model of a frozen dataclass, others inside it included."""
    hints = get_type_hints(of)
    keys: dict[str, Any] = dict(more)
    for field in fields(of):
        kind = hints[field.name]
        if is_dataclass(kind):
            model = _model(kind)
            keys[field.name] = (model, Field(default_factory=model))
        else:
            assert field.default is not MISSING
            above_0 = {int: Field(strict=True, gt=0), float: Field(gt=0)}.get(kind)
            bound = _BOUNDS.get(field.name) or above_0 or Field()
            keys[field.name] = (Annotated[kind, bound], field.default)
    return create_model(of.__name__, __base__=FileModel, **keys)


HiPpoTrainingFile: Final = _model(
    LearningSettings,
    api_version=(Literal["strata/v1alpha1"], Field(alias="apiVersion")),
    kind=(Literal["HiPpoTraining"], ...),
)


def load_learning(path: str | Path) -> LearningSettings:
    """Read a training file. Raises BadFile with every fault."""
    document = read_document(path)
    keys = document.check(HiPpoTrainingFile).model_dump(exclude={"api_version", "kind"})
    try:
        return LearningSettings.of(keys)
    except UsageError as error:
        key = "worlds" if "world" in str(error) else "table_envs"
        raise BadFile([document.fault((key,), str(error))], hint=error.hint) from None
