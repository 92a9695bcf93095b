from __future__ import annotations

import pytest

from strata.sentences import filled


@pytest.mark.parametrize(
    ("sentence", "data", "text"),
    [
        ("{n} ranks on {m} nodes", {"n": 8, "m": 1}, "8 ranks on 1 node"),
        ("{n} devices remain", {"n": 1}, "1 device remains"),
        ("{n:,} plans were built", {"n": 1}, "1 plan was built"),
        ("{n:,} plans were built", {"n": 1200}, "1,200 plans were built"),
        ("{free} of {total} devices are free", {"free": 0, "total": 1}, "0 of 1 devices are free"),
        ("{rate:count} requests/s after {s:time}", {"rate": 2000.0, "s": 90.0}, "2k requests/s after 90s"),
    ],
)
def test_a_sentence_has_its_figures_as_tables_write_them_and_its_words_by_number(sentence, data, text):
    assert filled(sentence, data) == text
