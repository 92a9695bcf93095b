from __future__ import annotations

import pytest

from strata.net.metrics import SECONDS, Counter, Histogram, Registry, read_counter, read_gauge, render


def test_values_that_are_read_are_those_of_the_moment_the_page_is_asked_for():
    new, waiting = Registry(), {("a",): 1.0}
    read_gauge(new, "waiting", "Now.", ["model"], lambda: waiting)
    read_counter(new, "steps_total", "Steps.", [], lambda: {(): 7})
    waiting[("b",)] = 2.0
    assert render(new) == (
        "# HELP waiting Now.\n# TYPE waiting gauge\n"
        'waiting{model="a"} 1.0\nwaiting{model="b"} 2.0\n'
        "# HELP steps_total Steps.\n# TYPE steps_total counter\nsteps_total 7.0\n"
    )


def test_a_gauge_is_not_read_before_the_page_is_asked_for():
    read_gauge(Registry(), "broken", "B.", [], lambda: {(): 1 / 0})


def test_a_page_has_no_series_of_start_times_and_its_buckets_reach_long_answers():
    new = Registry()
    Counter("c_total", "C.", registry=new)
    Histogram("took_seconds", "Took.", buckets=SECONDS, registry=new).observe(299)
    lines = render(new).splitlines()
    assert "c_total 0.0" in lines
    assert 'took_seconds_bucket{le="60.0"} 0.0' in lines
    assert 'took_seconds_bucket{le="300.0"} 1.0' in lines
    assert not [line for line in lines if "_created" in line]


def test_a_second_metric_of_a_name_is_our_bug():
    new = Registry()
    Counter("c_total", "C.", registry=new)
    with pytest.raises(ValueError, match="Duplicated"):
        read_counter(new, "c_total", "C.", [], dict)
