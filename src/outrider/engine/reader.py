"""Reads the texts of requests, each token once."""

from collections.abc import Sequence as Tokens

from outrider.core.reading import Reading, Traits, traits_of
from outrider.core.sequence import Sequence
from outrider.engine.detokenize import TextDecoder


class TextReader:
    """Says what the text around a draft is made of; the counts are the sequence's own."""

    def __init__(self, decoder: TextDecoder) -> None:
        """Read with `decoder`; a token is decoded when it is first seen."""
        self._decoder = decoder
        self._traits: dict[int, Traits] = {}

    def read(self, sequence: Sequence, draft: Tokens[int]) -> Reading:
        """Count the tokens that are new, and read the draft up to its last token but one."""
        texture = sequence.texture
        texture.read([self._of(token) for token in sequence.tokens[texture.num_read :]])
        before = (sequence.tokens[-1], *draft[:-1])
        return Reading(texture.name, tuple(self._of(token).kind for token in before))

    def _of(self, token: int) -> Traits:
        traits = self._traits.get(token)
        if traits is None:
            traits = self._traits[token] = traits_of(self._decoder.decode([token]))
        return traits
