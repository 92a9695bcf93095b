"""The picture: what it says is right, whatever the names, and it stays small."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given

from strata.simulate.svg import svg, write_svg
from strata.simulate.timeline import Span, SpanKind, Timeline
from tests.simulate.random_timelines import timelines
from tests.support.laws import examples

GOLDEN = Path(__file__).parent / "golden" / "two_stages.svg"
WEST, EAST, LINK = "llama/stage 0 (West)", "llama/stage 1 (East)", "llama/link West>East"
STEP = Timeline(
    (WEST, LINK, EAST),
    (
        Span(WEST, SpanKind.FORWARD, 0.0, 1.0, microbatch=0, is_critical=True),
        Span(WEST, SpanKind.FORWARD, 1.0, 2.0, microbatch=1),
        Span(WEST, SpanKind.BACKWARD, 6.0, 8.0, microbatch=0),
        Span(WEST, SpanKind.BACKWARD, 8.0, 10.0, microbatch=1, is_critical=True),
        Span(LINK, SpanKind.TRANSFER, 1.0, 1.5, "F0", 0, is_critical=True),
        Span(LINK, SpanKind.TRANSFER, 2.0, 2.5, "F1", 1),
        Span(EAST, SpanKind.FORWARD, 2.0, 3.0, microbatch=0, is_critical=True),
        Span(EAST, SpanKind.BACKWARD, 3.0, 5.0, microbatch=0),
        Span(EAST, SpanKind.FORWARD, 5.0, 6.0, microbatch=1),
        Span(EAST, SpanKind.BACKWARD, 6.0, 8.0, microbatch=1, is_critical=True),
        Span(EAST, SpanKind.UPDATE, 8.0, 9.5),
    ),
)


def texts(picture):
    return [element.text for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]


def many(*, lanes, microbatches, kinds=(SpanKind.FORWARD, SpanKind.BACKWARD), gap_s=0.1):
    names = tuple(f"job/stage {i} (domain)" for i in range(lanes))
    spans = []
    for name in names:
        end = 0.0
        for m in range(microbatches):
            for kind in kinds:
                length = 0.5 + (7 * m) % 11 / 11
                spans.append(Span(name, kind, end, end + length, "l" * 60, m, is_critical=m % 3 == 0))
                end += length + gap_s
    return Timeline(names, tuple(spans))


def test_a_step_of_two_stages_is_drawn_as_it_was():
    # After a change that is meant: look at the new picture, then write it there.
    assert svg(STEP, title="Two stages", width=800) == GOLDEN.read_text()


def test_idle_time_is_what_no_span_fills():
    said = texts(svg(STEP, title="t"))
    assert [text for text in said if re.fullmatch(r"idle \d+%", text)] == ["idle 40%", "idle 25%"]
    assert "step 10s, stages idle 32% of it" in said


def test_the_time_axis_says_its_unit_and_round_numbers():
    said = texts(svg(STEP, title="t", width=800))
    assert "time [s]" in said
    assert [text for text in said if re.fullmatch(r"\d+", text)] == ["0", "2", "4", "6", "8", "10"]


@pytest.mark.parametrize(
    ("end_s", "unit"), [(5e-9, "ns"), (5e-6, "us"), (0.9, "ms"), (599.0, "s"), (3e3, "min"), (1e5, "h")]
)
def test_the_unit_fits_the_length_of_the_step(end_s, unit):
    picture = svg(Timeline(("a",), (Span("a", SpanKind.FORWARD, 0.0, end_s),)), title="t")
    assert f"time [{unit}]" in texts(picture)


def test_kinds_differ_in_letter_and_pattern_not_only_in_colour():
    picture = svg(STEP, title="t")
    patterns = re.findall(r"<pattern.*?</pattern>", picture)
    without_colour = {re.sub(r'id="[^"]*"|#\w+', "", pattern) for pattern in patterns}
    assert len(without_colour) == len(patterns) == len(SpanKind)
    assert {"F", "B", "T", "U"} <= set(texts(picture))


def test_names_cannot_break_the_picture():
    lane = "a<&>\"'\x00/stage 0 (<script>\x07)"
    timeline = Timeline((lane,), (Span(lane, SpanKind.FORWARD, 0.0, 1.0, "<a&b>"),))
    picture = svg(timeline, title="<a&b> \ud800")
    picture.encode()
    assert "<script" not in picture
    assert {"<a&b>", "stage 0 (<script>?)", "<a&b> ?"} <= set(texts(picture))


@pytest.mark.long("a law over many pictures")
@given(timeline=timelines())
@examples(60)
def test_any_timeline_is_a_well_formed_picture_without_negative_sizes(timeline):
    picture = svg(timeline, title="t", width=500)
    for element in ElementTree.fromstring(picture).iter():
        for name in ("x", "y", "width", "height"):
            value = element.get(name, "0")
            assert value == "100%" or float(value) >= 0
    assert "nan" not in picture
    assert "inf" not in picture


def test_nothing_to_draw_is_said():
    assert "nothing happened" in texts(svg(Timeline((), ()), title="t"))
    assert "nothing happened" in texts(svg(Timeline((WEST,), ()), title="t"))
    assert "nothing happened" in texts(
        svg(Timeline((WEST,), (Span(WEST, SpanKind.FORWARD, 0.0, 0.0),)), title="t")
    )


def test_a_thousand_microbatches_become_shares_of_time():
    timeline = many(lanes=2, microbatches=1024, gap_s=0.0)
    picture = svg(timeline, title="t")
    assert any("height is the share of time" in text for text in texts(picture))
    assert picture.count("<rect") < 20
    assert len(picture) < 20_000
    assert texts(picture).count("idle 0%") == 2


@pytest.mark.long("draws hundreds of thousands of spans")
@pytest.mark.parametrize("kinds", [(SpanKind.FORWARD, SpanKind.BACKWARD), tuple(SpanKind)])
@pytest.mark.parametrize(("lanes", "microbatches"), [(8, 60), (100, 9), (150, 200)])
def test_the_file_stays_under_a_megabyte(kinds, lanes, microbatches):
    picture = svg(many(lanes=lanes, microbatches=microbatches, kinds=kinds), title="t" * 100, width=4000)
    assert len(picture) < 1_000_000
    assert (f"{lanes - 100} more lanes are not drawn" in picture) == (lanes > 100)


def test_several_jobs_stand_under_their_names():
    lanes = ("a/stage 0 (x)", "b/stage 0 (x)")
    picture = svg(Timeline(lanes, (Span(lanes[0], SpanKind.FORWARD, 0.0, 1.0),)), title="t")
    said = texts(picture)
    assert said.index("a") < said.index("b")
    assert "a" not in texts(svg(Timeline(lanes[:1], ()), title="t"))


def test_a_screen_reader_hears_the_title_and_who_idles():
    root = ElementTree.fromstring(svg(STEP, title="Two stages"))
    title, desc = root[0], root[1]
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
    assert title.text == "Two stages"
    assert desc.text == "3 lanes over 10s. stage 0 (West) idles 40%; stage 1 (East) idles 25%"


def test_a_picture_is_written_to_a_file(tmp_path):
    write_svg(STEP, tmp_path / "t.svg", title="t", width=800)
    assert (tmp_path / "t.svg").read_text() == svg(STEP, title="t", width=800)
