"""What a job fixes of its layout: `parallel: {tensor: 8, pipeline: 4}` leaves the rest to the planner."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Pins:
    """The sizes that every plan of a job must have (`TrainingPlan.keeps`); None leaves one to the planner.

    tensor: devices of a stage, or of each of `context` pieces of its sequences. pipeline: stages of each pipeline.
    data: copies of the model, those of all pipelines together. microbatch: samples. expert: devices that share one
    set of a layer's experts. virtual_stages: chunks of layers a stage, 1 where stages do not interleave.
    """

    tensor: int | None = None
    pipeline: int | None = None
    data: int | None = None
    microbatch: int | None = None
    context: int | None = None
    expert: int | None = None
    virtual_stages: int | None = None

    @property
    def given(self) -> dict[str, int]:
        """The sizes that are fixed, by name."""
        sizes = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: size for name, size in sizes.items() if size is not None}

    def without(self, name: str) -> Pins:
        """Return the pins but one."""
        return replace(self, **{name: None})

    def __str__(self) -> str:
        return ", ".join(f"{name} {size}" for name, size in self.given.items())
