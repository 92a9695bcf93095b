from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata import units
from strata.errors import UsageError


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("400Gbps", "bandwidth", 5e10),
        ("400Gbit/s", "bandwidth", 5e10),
        ("400Gb/s", "bandwidth", 5e10),
        ("50GB/s", "bandwidth", 5e10),
        ("1Gibps", "bandwidth", 2**30 / 8),
        ("16Gi", "bytes", 16 * 2**30),
        ("16 GiB", "bytes", 16 * 2**30),
        ("80GB", "bytes", 80e9),
        ("500m", "time", 30_000),
        ("1h30m", "time", 5400),
        ("1 h 30 min", "time", 5400),
        ("-1h30m", "time", -5400),
        ("1,500ms", "time", 1.5),
        ("1_500ms", "time", 1.5),
        ("5µs", "time", 5e-6),
        ("5μs", "time", 5e-6),
        ("312TFLOPS", "flops", 312e12),
        ("6e21FLOP", "flop", 6e21),
        ("$1.20", "usd", 1.2),
        ("-$1.20", "usd", -1.2),
        ("1.20 USD", "usd", 1.2),
        ("$2.50/h", "usd_per_hour", 2.5),
        ("$0.02/GB", "usd_per_byte", 2e-11),
        ("0.02USD/GiB", "usd_per_byte", 0.02 / 2**30),
        ("4Mi", "tokens", 4 * 2**20),
        ("2 T tokens", "tokens", 2e12),
        ("7B", "tokens", 7e9),
        (4096, "tokens", 4096),
        (0, "bandwidth", 0),
        ("0", "bytes", 0),
    ],
)
def test_a_quantity_is_read_as_people_write_it(text, dimension, value):
    assert units.parse(text, dimension) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "dimension", "says"),
    [
        pytest.param(400, "bandwidth", "no unit", id="bare-number"),
        pytest.param("400", "bandwidth", "no unit", id="bare-text"),
        pytest.param("400gbps", "bandwidth", "'gbps'", id="prefix-in-lower-case"),
        pytest.param("400GBps", "bandwidth", "'GBps'", id="bits-or-bytes"),
        pytest.param("80Gb", "bytes", "'b' is bits", id="gigabits-of-memory"),
        pytest.param("5M", "time", "'M'", id="mega-what"),
        pytest.param("1h-30m", "time", "cannot read", id="sign-inside"),
        pytest.param("3 0ms", "time", "cannot read", id="space-in-a-number"),
        pytest.param("1,5s", "time", "cannot read", id="decimal-comma"),
        pytest.param("1tokensM", "tokens", "'tokensM'", id="unit-before-prefix"),
        pytest.param("nan", "time", "cannot read", id="nan"),
        pytest.param("infs", "time", "cannot read", id="inf"),
        pytest.param("1e400s", "time", "not a finite number", id="overflow"),
        pytest.param("1e308h", "time", "not a finite number", id="overflow-by-the-unit"),
        pytest.param(10**400, "tokens", "not a finite number", id="huge-integer"),
        pytest.param(math.nan, "usd", "not a finite number", id="float-nan"),
        pytest.param("9" * 10_000, "tokens", "cannot read", id="long-text"),
        pytest.param("１２ms", "time", "cannot read", id="full-width-digits"),
        pytest.param("", "time", "cannot read", id="empty"),
        pytest.param(True, "tokens", "not a quantity", id="yes"),
        pytest.param(None, "time", "not a quantity", id="null"),
    ],
)
def test_what_could_be_mistaken_is_refused_with_an_example(text, dimension, says):
    with pytest.raises(UsageError, match=says) as caught:
        units.parse(text, dimension)
    message = str(caught.value)
    assert len(message) < 200
    assert "write " in message or "finite" in message


def test_minus_zero_is_zero():
    assert math.copysign(1, units.parse("-0s", "time")) == 1


@given(st.text("0123456789.,_eE+- $/kMGTiBbpshmn\t", max_size=12), st.sampled_from(sorted(units._UNITS)))
def test_any_text_is_read_or_refused_and_never_becomes_infinite(text, dimension):
    try:
        value = units.parse(text, dimension)
    except UsageError:
        return
    assert math.isfinite(value)


@given(st.sampled_from([(d, u) for d, table in units._UNITS.items() for u in table if u]), st.floats(1e-3, 1e3))
def test_every_unit_of_the_table_can_be_written(unit_of, number):
    dimension, unit = unit_of
    text = f"${number}{unit[1:]}" if unit.startswith("$") else f"{number}{unit}"
    assert units.parse(text, dimension) == pytest.approx(number * units._UNITS[dimension][unit])


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.show_time(0), "0s"),
        (units.show_time(0.0123), "12.3ms"),
        (units.show_time(0.9999), "1s"),
        (units.show_time(9.996e-4), "1ms"),
        (units.show_time(599.4), "599s"),
        (units.show_time(620), "10.3min"),
        (units.show_time(3599.9), "1h00m"),
        (units.show_time(7500), "2h05m"),
        (units.show_time(-3660), "-1h01m"),
        (units.show_time(-0.03), "-30ms"),
        (units.show_time(math.inf), "inf"),
        (units.show_bytes(80e9), "74.5GiB"),
        (units.show_bytes(999.9 * 2**30), "1000GiB"),
        (units.show_bytes(1000 * 2**30), "1000GiB"),
        (units.show_bytes(12), "12B"),
        (units.show_bandwidth(5e9 / 8), "5Gbps"),
        (units.show_bandwidth(999.6e6 / 8), "1Gbps"),
        (units.show_bandwidth(0), "0bps"),
        (units.show_flops(312e12), "312TFLOPS"),
        (units.show_count(70.6e9), "70.6B"),
        (units.show_count(6e24), "6e+24"),
        (units.show_usd(12.3), "$12.30"),
        (units.show_usd(0.0041), "$0.0041"),
        (units.show_usd(0.9999), "$1.00"),
        (units.show_usd(-5), "-$5.00"),
    ],
)
def test_a_quantity_is_shown_with_the_digits_that_matter(shown, text):
    assert shown == text


@given(st.floats(1e-9, 3e6))
def test_a_shown_time_reads_back_to_three_digits(seconds):
    # Half a minute is the coarsest rounding, just above an hour: 0.9 %.
    assert units.parse(units.show_time(seconds), "time") == pytest.approx(seconds, rel=0.01)


@given(st.floats(1, 1e15))
def test_a_shown_bandwidth_reads_back_to_three_digits(bandwidth):
    assert units.parse(units.show_bandwidth(bandwidth), "bandwidth") == pytest.approx(bandwidth, rel=0.006)


@given(st.integers(0, 10**15))
def test_a_shown_size_reads_back_to_three_digits(count):
    assert units.parse(units.show_bytes(count), "bytes") == pytest.approx(count, rel=0.006)
