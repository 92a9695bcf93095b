"""Random timelines that keep the contract: by lane, then by time, never two spans at once."""

from hypothesis import strategies as st

from strata.simulate.timeline import Span, SpanKind, Timeline

KINDS = list(SpanKind)


@st.composite
def timelines(draw):
    lanes = draw(st.lists(st.text(max_size=20), max_size=4, unique=True))
    spans = []
    for lane in lanes:
        end = 0.0
        for _ in range(draw(st.integers(0, 12))):
            # Also spans without length, gaps without length, and ends that no nanosecond hits.
            gap, length = draw(st.tuples(*[st.just(0.0) | st.floats(1e-9, 5.0)] * 2))
            spans.append(
                Span(
                    lane,
                    draw(st.sampled_from(KINDS)),
                    end + gap,
                    end + gap + length,
                    draw(st.sampled_from(["", "F3", "<b>&"])),
                    draw(st.integers(-1, 3)),
                    draw(st.booleans()),
                )
            )
            end += gap + length
    return Timeline(tuple(lanes), tuple(spans))
