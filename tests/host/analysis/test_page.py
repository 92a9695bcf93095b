"""The picture of a trace: one file that needs nothing else, whatever threads are called and however many."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from strata.host.analysis.accelerator import AcceleratorActivity
from strata.host.analysis.page import COLUMNS, page
from strata.host.analysis.report import report_of
from strata.host.analysis.view import TraceView
from strata.host.threads.processes import Census, Process
from tests.host.traces import IDLE, Text

T, HOG = ("trainer_main", 11), ("hog", 12)
HOSTILE = ("<script>a=1//", '"><img src=x>', "&lt;b&gt;", "'onload='a()'")


class Parsed(HTMLParser):
    """The tags of a page, what stands between them, and which are open."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.attributes = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def quiet(*, steps=50, wait_ms=0.0, rival=IDLE):
    """A trainer on CPU 0 that works 5 ms of each 10, and waits for the rival each time it is woken."""
    text, on = Text(), IDLE
    for step in range(steps):
        now = 10.0 * step
        text.wake(now + 1, 0, T, by=rival).switch(now + 1.001 + wait_ms, 0, on, T, "S" if on == IDLE else "R")
        text.switch(now + 6 + wait_ms, 0, T, on := rival)
    return text


def drawn(text, folder, **more):
    return page(report_of(TraceView(text.trace(folder), **more)), title="trace.txt")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_wherever_it_stands(name, tmp_path):
    text = quiet(wait_ms=3, rival=(name, 12))
    parsed = Parsed(drawn(text, tmp_path, critical=("trainer",)))
    assert name in parsed.text
    other = Parsed(drawn(quiet(wait_ms=3, rival=HOG), tmp_path, critical=("trainer",)))
    assert (parsed.tags, len(parsed.attributes)) == (other.tags, len(other.attributes))
    assert name in Parsed(drawn(text, tmp_path, critical=(name[:3],))).text


def test_what_moves_a_cursor_is_not_in_the_file(tmp_path):
    name = "\x1b[2Jhog\x9b\u202e"
    rival = Process(20, 1, name, f"python {name}\nx", "/", 0)
    census = Census({20: rival}, {12: 20}, {12: 0})
    text = drawn(quiet(wait_ms=3, rival=("hog", 12)), tmp_path, critical=("trainer",), census=census)
    assert "hog??, process 20 of user 0" in text
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_a_page_needs_nothing_but_itself_and_its_pictures_are_sound(tmp_path):
    text = drawn(quiet(wait_ms=3, rival=HOG), tmp_path)
    assert not re.search(r"https?:|src=|href=|@import|url\(|<script", text)
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) == 2
    for picture in pictures:
        ElementTree.fromstring(picture)
    assert "\u25bc" in Parsed(text).text  # a finding's pin


def test_a_page_of_many_events_cpus_and_threads_is_no_larger_and_says_what_it_leaves_out(tmp_path):
    text = quiet(steps=2000, wait_ms=3, rival=HOG)
    for cpu in range(1, 40):
        text.switch(cpu, cpu, IDLE, (f"trainer_{cpu}", 100 + cpu))
    shown = drawn(text, tmp_path)
    assert "the 6 of 40 critical threads" in shown
    assert "the 16 of 40 CPUs" in shown
    assert len(shown) < 120 * COLUMNS * 10
    assert "Shown are" not in drawn(quiet(wait_ms=3, rival=HOG), tmp_path)


def test_a_quiet_trace_has_a_page_too(tmp_path):
    assert "None that cost" in drawn(quiet(), tmp_path)
    drawn(Text().switch(0, 0, IDLE, T), tmp_path)


def test_with_a_profiler_s_trace_the_accelerator_has_a_lane(tmp_path):
    times = TraceView(quiet().trace(tmp_path)).trace.events.time_ns[:4]
    shown = drawn(
        quiet(),
        tmp_path,
        accelerator=AcceleratorActivity(
            times[::2],
            times[1::2] - times[::2],
            times[:0],
            times[:0],
            times[:0],
            times[:0],
            1,
            times,
            (11,),
            times,
            times,
        ),
    )
    assert "any kernel runs" in shown
