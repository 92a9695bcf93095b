from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata.serving.tokens import BOS, EOS, VOCAB_SIZE, StopFinder, TextStream, encode
from tests.serving.texts import decode


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_text_survives_the_way_to_tokens_and_back(text):
    tokens = encode(text)
    assert tokens[0] == BOS
    assert all(token < VOCAB_SIZE for token in tokens)
    assert decode(tokens) == text


def test_a_lone_surrogate_becomes_a_question_mark():
    assert decode(encode("a\ud800b")) == "a?b"


@given(st.lists(st.integers(0, VOCAB_SIZE - 1)))
def test_a_stream_of_tokens_gives_the_text_of_all_of_them(tokens):
    stream = TextStream()
    assert "".join([*map(stream.push, tokens), stream.end()]) == decode(tokens)


def test_a_character_appears_when_its_last_byte_is_there():
    stream = TextStream()
    assert [stream.push(token) for token in "€".encode()] == ["", "", "€"]
    assert stream.push(EOS) == ""


@given(st.lists(st.text("ab", max_size=3)), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_what_is_shown_ends_before_the_first_stop_text_however_it_comes_in(pieces, stops):
    finder, shown = StopFinder(stops), ""
    text = ""
    for piece in pieces:
        text += piece
        shown += finder.push(piece)
        cuts = [text.find(stop) for stop in stops if stop in text]
        assert finder.is_found == bool(cuts)
        if cuts:
            break
    shown += finder.end()
    # A stop text is seen with its last letter; one that begins earlier counts if the same piece ends it.
    assert shown == (text[: min(cuts)] if pieces and cuts else text)


def test_nothing_is_held_back_that_cannot_become_a_stop_text():
    finder = StopFinder(["END"])
    assert [finder.push("a"), finder.push("E"), finder.push("N"), finder.push("T")] == ["a", "", "", "ENT"]
