"""Events of engines on their way to a client: read once, and after that by what they have in common."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from strata.serving.gateway.openai import ChatRequest, parse
from strata.serving.gateway.relay import Relay
from strata.serving.gateway.request_stream import RequestStream
from strata.serving.request import RequestSignal
from strata.serving.tokens import TextStream
from tests.support.laws import examples

ASKED = parse(ChatRequest, b'{"model":"ours","messages":[{"role":"user","content":"x"}],"stream":true,"n":2}')
HARD = [
    "",
    "a",
    "ours",
    "theirs",
    "model",
    "index",
    "content",
    'say "no"',
    "back\\slash",
    "\n",
    "é",
    "日",
    "\x00",
    "}]}",
]
PIECES = st.lists(
    st.tuples(
        st.sampled_from(HARD) | st.text(max_size=5),
        st.sampled_from([{}, {}, {}, {"role": "assistant"}, {"reasoning": "hm"}]),
        st.sampled_from([0, 0, 0, 1]),
        st.sampled_from([None, None, None, None, "stop"]),
    ),
    max_size=30,
)


def stream_of():
    signal = RequestSignal("chatcmpl-1")
    return RequestStream(
        ASKED, signal, (), arrived_s=0.0, decoder=TextStream(), on_first_token=lambda stream: None
    )


@examples(200)
@given(
    pieces=PIECES,
    ascii_only=st.booleans(),
    separators=st.sampled_from([(",", ":"), (", ", ": ")]),
    is_turned=st.booleans(),
)
def test_every_event_is_the_engines_but_for_its_id_and_model(pieces, ascii_only, separators, is_turned):
    stream = stream_of()
    relay, texts = Relay(stream), []
    for text, more, index, finish in pieces:
        choice = {"index": index, "delta": {"content": text} | more, "logprobs": None, "finish_reason": finish}
        head = {"id": "theirs", "object": "chat.completion.chunk", "created": 5, "model": "theirs"}
        event = {"choices": [choice]} | head if is_turned else head | {"choices": [choice]}
        line = json.dumps(event, ensure_ascii=ascii_only, separators=separators).encode()
        out = relay.feed(b"data: " + line + b"\n\n")
        texts += [text] if text else []
        assert json.loads(out.removeprefix(b"data: ")) == event | {"id": "chatcmpl-1", "model": "ours"}
        assert (out[-2:], relay.is_over) == (b"\n\n", False)
        assert (stream.texts, stream.num_generated) == (texts, len(texts))
    assert stream.is_plain == (not any("reasoning" in more for _, more, _, _ in pieces))
    assert relay.is_done == ({0, 1} <= {index for _, _, index, finish in pieces if finish})


def test_an_event_like_the_one_before_is_not_read_again(monkeypatch):
    relay = Relay(stream_of())
    head = b'data: {"id":"a","object":"o","created":5,"model":"m",'
    line = head + b'"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'
    relay.feed(line % b"one")
    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", None)
        out = relay.feed(line % b"two")
    assert json.loads(out[6:])["choices"][0]["delta"]["content"] == "two"
