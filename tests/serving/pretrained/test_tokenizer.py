"""The tokenizer of a folder: text there and back, chats, and what cannot be this model's."""

import random

import pytest

from strata.errors import BadFile
from strata.serving.pretrained.folder import read_folder
from tests.serving.pretrained import folders

pytestmark = pytest.mark.real("torch", "transformers")


def tokenizer_of(folder):
    from strata.serving.pretrained.tokenizer import PretrainedTokenizer

    return PretrainedTokenizer(read_folder(folder))


def pushed(decoder, tokens):
    return [decoder.push(token) for token in tokens] + [decoder.end()]


@pytest.fixture
def folder(tmp_path):
    return folders.make("llama", tmp_path)


@pytest.mark.parametrize("text", ["the lazy dog", "naïve 日本語 🙂🙂", "  two  spaces ", "\ud800 alone"])
def test_text_comes_back_however_it_is_cut(folder, text):
    tokenizer = tokenizer_of(folder)
    first, *tokens = tokenizer.encode(text)
    assert first == 0
    pieces = pushed(tokenizer.decoder((first,)), tokens)
    assert "".join(pieces) == text.encode("utf-8", "replace").decode()
    assert len([piece for piece in pieces if piece]) > 1
    assert not any("\ufffd" in piece for piece in pieces)


def test_what_is_no_text_is_shown_as_such_at_the_end_and_special_tokens_never(folder):
    tokenizer = tokenizer_of(folder)
    tokens = tokenizer.encode("日")[1:]
    half = pushed(tokenizer.decoder((0,)), [*tokens[:-1], 1])
    assert "".join(half) == "\ufffd"
    assert half[0] == ""


def test_a_space_before_the_first_word_of_an_answer_is_kept(tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = folders.make("llama", tmp_path)
    made = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "▁once": 2, "▁upon": 3, "?": 4}, unk_token="?"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    tokenizer = tokenizer_of(folder)
    prompt = tokenizer.encode("once")
    assert "".join(pushed(tokenizer.decoder(prompt), [3, 2])) == " upon once"


def test_a_chat_is_what_the_template_writes(folder):
    tokenizer = tokenizer_of(folder)
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    expected = folders.tokenizer()(
        "<|system|>be brief</s><|user|>hello</s><|assistant|>", add_special_tokens=False
    )
    assert tokenizer.encode_chat(chat) == tuple(expected["input_ids"])


def test_a_template_that_raises_tells_the_client_why(folder):
    with pytest.raises(ValueError, match="chat template takes no such chat: no tools here"):
        tokenizer_of(folder).encode_chat([{"role": "tool", "content": "42"}])


def test_a_template_that_refuses_every_chat_still_serves_completions(folder, caplog):
    (folder / "chat_template.jinja").write_text("{{ raise_exception('never') }}")
    tokenizer = tokenizer_of(folder)
    assert "refuses a chat of one message: never" in caplog.text
    assert tokenizer.encode("hello")


def test_a_model_without_a_template_takes_no_chats(folder):
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="no chat template; ask /v1/completions"):
        tokenizer_of(folder).encode_chat([{"role": "user", "content": "hello"}])


def refused(folder, *words):
    with pytest.raises(BadFile) as caught:
        tokenizer_of(folder)
    shown = "\n".join(caught.value.lines())
    assert str(folder) in shown
    assert "try: " in shown
    assert all(word in shown for word in words), shown


def test_a_template_that_is_none_is_refused_at_the_start(folder):
    (folder / "chat_template.jinja").write_text("{% for m in messages %}")
    refused(folder, "the chat template is no template")


def test_a_folder_without_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").unlink()
    refused(folder, "tokenizer.json: no such file")


def test_a_tokenizer_that_cannot_be_read_is_refused(folder):
    (folder / "tokenizer.json").write_text('{"model": ')
    refused(folder, "tokenizer.json: not a tokenizer")


def test_the_tokenizer_of_a_larger_model_is_refused(folder):
    folders.edit(folder, vocab_size=300)
    refused(folder, "and the model none above 299")


def test_the_tokenizer_of_another_model_is_known_by_where_answers_end(folder):
    folders.edit(folder, "generation_config.json", eos_token_id=[1, 100])
    refused(folder, "token 100, which ends this model's answers, is the text")
    folders.edit(folder, "generation_config.json", eos_token_id=383)
    refused(folder, "token 383, which ends this model's answers, is no token")


def test_any_tokens_become_the_text_that_they_are_together(folder):
    tokenizer, reference, dice = tokenizer_of(folder), folders.tokenizer(), random.Random(0)
    for _ in range(40):
        prompt = [0, *reference("the dog", add_special_tokens=False)["input_ids"]]
        tokens = [dice.randrange(380) for _ in range(40)]
        whole, before = (reference.decode(part, skip_special_tokens=True) for part in (prompt + tokens, prompt))
        assert "".join(pushed(tokenizer.decoder(prompt), tokens)) == whole[len(before) :]
