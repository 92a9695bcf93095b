"""The tokenizer of a model's folder, and its chat template. Needs transformers, of the extra `models`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from strata.errors import BadFile, Fault
from strata.serving.pretrained.folder import ModelFolder
from strata.serving.tokens import TokenDecoder

log = logging.getLogger(__name__)

CONTEXT: Final = 8
"""Tokens that new ones are decoded behind: some tokenizers drop a space at the beginning of a text."""
UNFINISHED: Final = "\ufffd"


class PretrainedTokenizer:
    """The tokenizer of a folder. Raises BadFile where it cannot be this model's."""

    def __init__(self, folder: ModelFolder) -> None:
        import transformers
        from jinja2 import TemplateSyntaxError

        transformers.logging.set_verbosity_error()
        file = folder.path / "tokenizer.json"
        if not file.is_file():
            hint = "the model's own tokenizer.json beside its weights"
            raise BadFile([Fault(str(file), "no such file, and the gateway needs it for text")], hint=hint)
        try:
            # Not AutoTokenizer, which imports torch where it is there: half a gigabyte for nothing.
            kind: Any = transformers.PreTrainedTokenizerFast
            self._tokenizer = kind.from_pretrained(folder.path, local_files_only=True)
        except Exception as error:  # whatever the libraries below make of a broken file
            trouble = f"not a tokenizer: {type(error).__name__}: {error}"
            raise BadFile([Fault(str(file), trouble)], hint="the model's own tokenizer.json") from error
        self.stop_tokens = folder.stop_tokens
        self.encode("hello")  # what a file says of padding is put away once; later calls only read, in any thread
        _check(self._tokenizer, folder)
        if self._tokenizer.chat_template:
            try:
                self._chat([{"role": "user", "content": "hello"}])
            except TemplateSyntaxError as error:
                fault = Fault(str(folder.path), f"the chat template is no template: {error.message}", error.lineno)
                raise BadFile(
                    [fault], hint="the model's own tokenizer_config.json or chat_template.jinja"
                ) from error
            except Exception as error:  # it may refuse this chat and take others
                log.warning("the chat template refuses a chat of one message: %s", error)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return a prompt's tokens, with those that the model begins with."""
        return self._encode(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Return the tokens of a chat, as the model's template writes it. Raises ValueError with its words."""
        if not self._tokenizer.chat_template:
            raise ValueError("this model has no chat template; ask /v1/completions")
        try:
            text = self._chat(messages)
        except Exception as error:  # a template is a program of the folder's, and may raise anything
            raise ValueError(f"the model's chat template takes no such chat: {error}") from error
        return self._encode(text, add_special_tokens=False)

    def decoder(self, prompt: Sequence[int]) -> TokenDecoder:
        """Return what makes text of the tokens after a prompt."""
        return PretrainedDecoder(self._tokenizer, prompt)

    def _chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        text = text.encode("utf-8", errors="replace").decode()  # JSON may hold lone surrogates
        ids = self._tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
        return tuple(ids)


class PretrainedDecoder:
    """Text of tokens as they come: what a token adds is what is longer when it is decoded with those before it.

    Few before it are enough, so that a long answer does not slow down; text that ends in the middle of a character
    waits for the rest. Special tokens are no text.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-CONTEXT:])
        self._num_shown = len(self._tokens)

    def push(self, token: int) -> str:
        """Return the text that a token completes, perhaps none."""
        self._tokens.append(token)
        text, shown = self._text(len(self._tokens)), self._text(self._num_shown)
        if text.endswith(UNFINISHED) or len(text) <= len(shown):
            return ""
        self._tokens = self._tokens[max(0, self._num_shown - CONTEXT) :]
        self._num_shown = len(self._tokens)
        return text[len(shown) :]

    def end(self) -> str:
        """Return what is left: a character that was never completed."""
        return self._text(len(self._tokens))[len(self._text(self._num_shown)) :]

    def _text(self, count: int) -> str:
        tokens = self._tokens[:count]
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _check(tokenizer: Any, folder: ModelFolder) -> None:
    """Raise BadFile for the tokenizer of another model, as far as it can be told."""
    file, vocab_size = str(folder.path / "tokenizer.json"), folder.hosted.vocab_size
    most = max(tokenizer.get_vocab().values(), default=0)
    hint = "the tokenizer files that came with these weights"
    if most >= vocab_size:
        raise BadFile([Fault(file, f"has token {most}, and the model none above {vocab_size - 1}")], hint=hint)
    for token in folder.stop_tokens:
        if token not in tokenizer.added_tokens_decoder:
            text = tokenizer.convert_ids_to_tokens(token) if token <= most else None
            what = "no token" if text is None else f"the text {text!r}"
            message = f"token {token}, which ends this model's answers, is {what}, not a special token"
            raise BadFile([Fault(file, message)], hint=hint)
