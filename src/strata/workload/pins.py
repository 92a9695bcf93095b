"""What a job fixes of its layout: `parallel: {tensor: 8, pipeline: 4}` leaves the rest to the planner."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Pins:
    """The sizes that every plan of a job must have (`TrainingPlan.keeps`); None leaves one to the planner.

    tensor: devices of a stage, or of each of `context` pieces of its sequences. pipeline: stages of each pipeline.
    data: copies of the model, those of all pipelines together. microbatch: samples. expert: devices that share one
    set of a layer's experts. virtual_stages: chunks of layers a stage, 1 where stages do not interleave. stages:
    the domains that hold stages, each with how many of a copy.
    """

    tensor: int | None = None
    pipeline: int | None = None
    data: int | None = None
    microbatch: int | None = None
    context: int | None = None
    expert: int | None = None
    virtual_stages: int | None = None
    stages: tuple[tuple[str, int], ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What is fixed."""
        return tuple(item.name for item in fields(self) if getattr(self, item.name) is not None)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that are fixed of all stages alike, by name."""
        return {name: getattr(self, name) for name in self.names if name != "stages"}

    def stages_in(self, domain: str) -> int | None:
        """Return the stages of a copy in a domain, None where the planner chooses."""
        return None if self.stages is None else dict(self.stages).get(domain, 0)

    def without(self, name: str) -> Pins:
        """Return the pins but one."""
        return replace(self, **{name: None})

    def __str__(self) -> str:
        parts = [f"{name} {size}" for name, size in self.sizes.items()]
        if self.stages is not None:
            parts.append(f"stages {show_stages(self.stages)}")
        return ", ".join(parts)


def show_stages(stages: tuple[tuple[str, int], ...]) -> str:
    """Return stages of domains as a setting of a what-if writes them."""
    return ",".join(f"{domain}:{count}" for domain, count in stages)
