from __future__ import annotations

import pytest

from strata.net.metrics import Registry


def test_the_page_is_in_the_text_format():
    new = Registry()
    served = new.counter("served_total", "Requests\nserved.", ["model"])
    served.inc(model="a")
    served.inc(2.5, model="b")
    new.gauge("waiting", "Now.", [], lambda: {(): 3})
    assert new.render() == (
        "# HELP served_total Requests\\nserved.\n"
        "# TYPE served_total counter\n"
        'served_total{model="a"} 1\n'
        'served_total{model="b"} 2.5\n'
        "# HELP waiting Now.\n# TYPE waiting gauge\nwaiting 3\n"
    )


def test_labels_are_escaped_so_that_no_name_breaks_out_of_its_quotes():
    new = Registry()
    new.counter("c", "C.", ["name"]).inc(name='a"} 9\n\\x')
    assert r'c{name="a\"} 9\n\\x"} 1' in new.render().splitlines()


def test_buckets_are_cumulative_and_a_bound_counts_what_equals_it():
    new = Registry()
    took = new.histogram("took_seconds", "Took.")
    for value in (0.001, 0.003, 1000.0):
        took.observe(value)
    lines = new.render().splitlines()
    assert 'took_seconds_bucket{le="0.001"} 1' in lines
    assert 'took_seconds_bucket{le="0.005"} 2' in lines
    assert 'took_seconds_bucket{le="300"} 2' in lines
    assert 'took_seconds_bucket{le="+Inf"} 3' in lines
    assert "took_seconds_sum 1000.004" in lines
    assert "took_seconds_count 3" in lines


def test_a_counter_without_labels_is_there_before_it_counts():
    new = Registry()
    new.counter("c_total", "C.")
    assert "c_total 0" in new.render().splitlines()


def test_wrong_labels_and_a_second_metric_of_a_name_are_our_bugs():
    new = Registry()
    counter = new.counter("c", "C.", ["model"])
    with pytest.raises(AssertionError, match="has labels"):
        counter.inc(modal="a")
    with pytest.raises(AssertionError, match="twice"):
        new.counter("c", "C.")
