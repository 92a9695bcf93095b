"""What a pod takes of each kind of card: the exchange of what a claim asks into devices, with its arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from strata import units
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.host import NOTHING, PodRequests
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.decision import Reason, Trust
from strata.fleet.accelerator import Accelerator
from strata.fleet.acu import Cards, Need, cards, deliverable, exchange
from strata.fleet.catalogue import accelerator

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class PodDemand:
    """What one pod takes under one profile on cards of one model.

    memory_bytes, cores_share: of the one device, for a fraction; None for whole devices. fit: the share of the
    devices that was asked for, by the figure that decides, in [0, 1]; 1 where the job counts devices itself.
    is_substitute: the job was written for another card. reasons: the arithmetic, where there was any.
    requests: of its node, whole devices as the profile counts them among them.
    """

    profile: RuntimeProfile
    model: str
    devices: int
    memory_bytes: float | None = None
    cores_share: float | None = None
    fit: float = 1.0
    is_substitute: bool = False
    trust: Trust = Trust.MEASURED
    reasons: tuple[Reason, ...] = ()
    requests: PodRequests = NOTHING


@dataclass(frozen=True, slots=True)
class Refusal:
    """A model that cannot stand for what is asked, and why."""

    model: str
    reason: Reason


def demands(index: Index, claim: Claim, profiles: Sequence[RuntimeProfile]) -> Iterator[PodDemand | Refusal]:
    """Yield what a pod takes on each model of the cluster, under the first profile that is for it."""
    chosen: dict[str, RuntimeProfile] = {}
    for profile in profiles:
        is_asked = claim.profile in ("", profile.name) and claim.framework in ("", profile.framework)
        if not is_asked or not profile.image:
            continue
        for model in profile.models:
            chosen.setdefault(model, profile)
    for model, card in index.cards.items():
        if model not in chosen:
            data = {"framework": claim.framework or "any", "profile": claim.profile or "any"}
            yield Refusal(model, Reason("no-profile", model, data))
        else:
            demand = _demand(claim, chosen[model], model, card)
            if isinstance(demand, PodDemand):
                demand = replace(demand, requests=_requests(claim, demand, profiles))
            yield demand


def _demand(claim: Claim, profile: RuntimeProfile, model: str, card: Accelerator | None) -> PodDemand | Refusal:
    if claim.vendor not in ("", profile.vendor):
        return Refusal(model, Reason("substitution-not-allowed", model, {"wanted": f"{claim.vendor} card"}))
    is_substitute = bool(claim.accelerator) and claim.accelerator != model
    if is_substitute and claim.substitution == "never":
        return Refusal(model, Reason("substitution-not-allowed", model, {"wanted": claim.accelerator}))
    if claim.is_fractional:
        return _fraction(claim, profile, model, card, is_substitute=is_substitute)
    if claim.need.amounts:
        if card is None:
            return Refusal(model, Reason("figure-missing", model, {"figure": "all", "accelerator": model}))
        return _whole(claim, profile, model, cards(claim.need, card), is_substitute=is_substitute)
    count = claim.devices or 1
    if not is_substitute:
        return PodDemand(profile, model, count)
    if card is None:
        return Refusal(model, Reason("figure-missing", model, {"figure": "all", "accelerator": model}))
    wanted = accelerator(claim.accelerator)
    answer = exchange(wanted, card, count=count, norm=claim.norm)
    return _whole(claim, profile, model, answer, is_substitute=True, wanted=f"{count}x {wanted.name}")


def _requests(claim: Claim, demand: PodDemand, profiles: Sequence[RuntimeProfile]) -> PodRequests:
    """Return what a pod requests as the webhook will have made it: of all profiles' resources only its own."""
    if not claim.requests.amounts:
        return claim.requests  # of who is no pod
    of_profiles = {profile.resource for profile in profiles}
    amounts = {name: amount for name, amount in claim.requests.amounts.items() if name not in of_profiles}
    if demand.memory_bytes is None:
        amounts[demand.profile.resource] = demand.devices
    return PodRequests(amounts, claim.requests.ports)


def _whole(
    claim: Claim, profile: RuntimeProfile, model: str, answer: Cards, *, is_substitute: bool, wanted: str = ""
) -> PodDemand | Refusal:
    if answer.count is None or answer.bound_by is None:
        figure = answer.missing[0].removeprefix(f"{model} ")
        return Refusal(model, Reason("figure-missing", model, {"figure": figure, "accelerator": model}))
    count, ratio = answer.count, answer.ratios[answer.bound_by]
    if not wanted and claim.devices is not None:
        if claim.devices < count:
            return Refusal(
                model, Reason("devices-too-few", model, {"asked": claim.devices, "need": count, "ratio": ratio})
            )
        count = claim.devices
    data = {
        "count": count,
        "model": model,
        "wanted": wanted or _need_text(claim.need),
        "ratio": ratio,
        "figure": answer.bound_by,
        "norm": claim.norm,
        "trust": answer.trust.value,
    }
    reason = Reason("exchanged", "", data)
    return PodDemand(
        profile,
        model,
        count,
        fit=min(1.0, ratio / count),
        is_substitute=is_substitute,
        trust=answer.trust,
        reasons=(reason,),
    )


def _fraction(
    claim: Claim, profile: RuntimeProfile, model: str, card: Accelerator | None, *, is_substitute: bool
) -> PodDemand | Refusal:
    """A fraction: so many bytes, and the share of the cores that was asked for or that the FP16 asked comes to."""
    share, trust = claim.cores_share or 0.0, Trust.MEASURED
    reasons: tuple[Reason, ...] = ()
    if fp16_flops := claim.need.amounts.get("fp16"):
        known = None if card is None else deliverable(card, "fp16")
        if known is None:
            return Refusal(model, Reason("figure-missing", model, {"figure": "fp16", "accelerator": model}))
        share, trust = fp16_flops / known[0], known[1]
        data = {"model": model, "share": share, "wanted": _need_text(claim.need), "trust": trust.value}
        if share > 1 + _ROUNDING:
            return Refusal(model, Reason("more-than-one-device", model, {"share": share}))
        reasons = (Reason("fraction-of", "", data),)
    size = 0.0 if card is None else card.memory_bytes
    if size and claim.memory_bytes > size * (1 + _ROUNDING):
        have, need = units.show_bytes(size), units.show_bytes(claim.memory_bytes)
        return Refusal(model, Reason("memory-exceeded", model, {"need": need, "have": have}))
    fit = max(share, claim.memory_bytes / size if size else 0.0)
    return PodDemand(
        profile,
        model,
        1,
        memory_bytes=claim.memory_bytes,
        cores_share=min(share, 1.0),
        fit=min(1.0, fit),
        is_substitute=is_substitute,
        trust=trust,
        reasons=reasons,
    )


def _need_text(need: Need) -> str:
    shown = {
        "fp16": units.show_flops,
        "fp32": units.show_flops,
        "memory": units.show_bytes,
        "memory_bandwidth": units.show_bandwidth,
        "link_bandwidth": units.show_bandwidth,
    }
    return " and ".join(f"{shown[f](amount)} {f.replace('_', ' ')}" for f, amount in need.amounts.items())
