"""What a chat template writes around the words of user and assistant, found by rendering markers.

Nothing here knows a template by name: whatever surrounds the markers is the format.
"""

from dataclasses import dataclass
from typing import Self

from outrider.errors import ConfigError, RequestRejected
from outrider.models.chat_template import ChatTemplate, Message
from outrider.models.tokenizer import Tokenizer

_USER = "Qwhat the user says"
_ASSISTANT = "Zwhat the assistant says"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The texts around a conversation that begins with the user."""

    header: str
    """Before the user's first words."""
    tail: str
    """Between the user's words and the assistant's, the assistant's header included."""
    tokenizer: Tokenizer

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Read the format off the tokenizer's template.

        Raises:
            ConfigError: There is no template, or it has no assistant header, so that nobody could
                tell the assistant's words from the user's.
        """
        template = tokenizer.chat_template
        if template is None:
            raise ConfigError(
                "the checkpoint has no chat template, so there is no place for a user's words; "
                "take an instruction-tuned model, or generate from prompts with --raw"
            )
        asked: list[Message] = [{"role": "user", "content": _USER}]
        with_header = template.render(asked)
        without = template.render(asked, add_generation_prompt=False)
        header, tail = _split(with_header, _USER)
        if len(with_header) <= len(without):
            raise ConfigError(_no_assistant_header(tokenizer, template, asked))
        return cls(header, tail, tokenizer)

    def follow_up(self, words: str) -> str:
        """Give what stands between the assistant's words and its next: the user's turn, `words`.

        It begins with what ends the assistant's turn.

        Raises:
            ConfigError: The template does not write the assistant's words as they are.
        """
        template = self.tokenizer.chat_template
        assert template is not None
        messages: list[Message] = [
            {"role": "user", "content": _USER},
            {"role": "assistant", "content": _ASSISTANT},
            {"role": "user", "content": words},
        ]
        return _split(template.render(messages), _ASSISTANT)[1]

    def user_stop(self) -> tuple[frozenset[int], tuple[str, ...]]:
        """Give token ids and strings that end the user's turn."""
        ids = self.tokenizer.encode(self.tail, add_special_tokens=False)
        if ids and ids[0] in self.tokenizer.special_ids:
            return frozenset({ids[0]}), ()
        return frozenset(), (self.tail.rstrip() or self.tail,)


def _split(text: str, marker: str) -> tuple[str, str]:
    if text.count(marker) != 1:
        raise ConfigError(
            f"the chat template writes a message {text.count(marker)} times instead of once, so "
            "what surrounds it cannot be told; generate with --raw"
        )
    before, _, after = text.partition(marker)
    return before, after


def _no_assistant_header(tokenizer: Tokenizer, template: ChatTemplate, asked: list[Message]) -> str:
    """Say how little the template tells: which part of a conversation a loss mask would cover."""
    try:
        whole = template.render(
            [*asked, {"role": "assistant", "content": _ASSISTANT}], add_generation_prompt=False
        )
    except RequestRejected:
        whole = ""
    total = len(tokenizer.encode(whole, add_special_tokens=False))
    return (
        "the chat template has no assistant header: the same text asks for an answer and does not, "
        f"so a loss mask read off it covers 0 of {total} tokens (0 %) of a conversation; "
        "take a template with a header, or generate with --raw"
    )
