"""Colours that stand for different things are told apart with any colour blindness, light and dark."""

from __future__ import annotations

import re

import pytest

from strata.host.analysis import page as host_page
from strata.host.rollout import pictures as rollouts
from strata.pictures import delays, spent, svg, wan, waterfall
from strata.simulate import svg as timeline
from tests import ROOT
from tests.support.colour_blind import VISIONS, distance, lab, nearest

LEAST = 10.0
"""CIEDE2000; from about 2 on, two colours beside each other are seen to differ."""
PAPERS = {"light": "#ffffff", "dark": "#15171a"}
INKS = {"light": "#1a1a1a", "dark": "#e8e8e8"}


def on(paper: str, colour: str) -> str:
    """Return a colour as it lies on a paper: `#8886` is a grey of 40 %."""
    if len(colour) == 7:
        return colour.lower()
    red, green, blue, share = (17 * int(letter, 16) for letter in colour[1:])
    mixed = (
        round((own * share + int(paper[i : i + 2], 16) * (255 - share)) / 255)
        for own, i in ((red, 1), (green, 3), (blue, 5))
    )
    return "#" + "".join(f"{part:02x}" for part in mixed)


def of_host_page(mode: str) -> list[str]:
    """Return the colours of a host report's page; those of its style stand first for light, then for dark."""
    style = (ROOT / "src/strata/host/analysis/templates/page.html").read_text()
    named = [re.findall(rf"--{name}:(#\w+)", style)[mode == "dark"] for name in ("critical", "other", "ink")]
    return [*named, *host_page._CULPRITS, *host_page._CAUSES.values()]


SETS = {
    "where a step goes": lambda mode: [colour for _, colour in spent._PARTS.values()],
    "requests": lambda mode: list(waterfall._KINDS.values()),
    "delay lanes": lambda mode: [colour for _, colour in delays._CAUSES.values()],
    "domains of a serving plan": lambda mode: list(svg.COLOURS),
    "a step's timeline": lambda mode: [look.colour for look in timeline._LOOKS.values()],
    "domains, used and not": lambda mode: [wan.IDLE, svg.COLOURS[1]],
    "links, idle, in use and slow": lambda mode: [INKS[mode], svg.COLOURS[4], svg.COLOURS[5]],
    "plans and the chosen one": lambda mode: [svg.COLOURS[0], svg.COLOURS[1]],
    "A/A and A/B": lambda mode: [rollouts._AA, rollouts._AB],
    "who held the CPU": of_host_page,
    "accelerators beside threads": lambda mode: [host_page._KERNELS, *host_page._CAUSES.values()],
}


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("mode", PAPERS)
@pytest.mark.parametrize("what", SETS)
def test_colours_of_different_things_are_told_apart(what, mode, vision):
    paper = PAPERS[mode]
    apart, first, second = nearest({on(paper, colour) for colour in [*SETS[what](mode), paper]}, vision)
    assert apart >= LEAST, f"{first} and {second} are {apart:.1f} apart"


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((22.7233, 20.0904, -46.694), (23.0331, 14.973, -42.5619), 2.0373),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_distance_is_the_published_one(first, second, apart):
    """Sharma, Wu and Dalal 2005, table 1."""
    assert distance(first, second) == pytest.approx(apart, abs=1e-4)


def test_red_and_green_look_alike_without_cones_that_tell_them():
    assert nearest({"#b05030", "#707030"}, "full")[0] > 2 * nearest({"#b05030", "#707030"}, "deuteranopia")[0]
    assert lab("#ffffff")[0] == pytest.approx(100, abs=1e-3)
