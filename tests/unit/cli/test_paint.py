"""Every character gets the origin of the token that completed it."""

from hypothesis import given
from hypothesis import strategies as st

from outrider.cli.paint import TokenPainter, colour_of, legend
from outrider.core.outcome import Origin
from outrider.core.request import SamplingParams
from outrider.engine.detokenize import TextStream
from outrider.models.tokenizer import Tokenizer
from outrider.testing.tiny import byte_tokenizer

A, T = Origin.ACCEPTED, Origin.TARGET


def tokenizer() -> Tokenizer:
    return Tokenizer(byte_tokenizer(258), special_tokens={})


def painted(chunks: list[tuple[str, list[Origin]]], stop: str = "") -> list[tuple[str, Origin]]:
    """Feed chunks of text, one byte per token, through an engine's text stream and the painter."""
    params = SamplingParams(stop=(stop,) if stop else ())
    own = tokenizer()
    stream = TextStream(own, [2], stop=params.stop)
    painter = TokenPainter(own, [2], params)
    pieces: list[tuple[str, Origin]] = []
    for number, (text, origins) in enumerate(chunks, start=1):
        tokens = own.encode(text)
        assert len(tokens) == len(origins)
        for token in tokens:
            if stream.push(token) is not None:
                break
        is_last = number == len(chunks)
        delivered = stream.finish() if is_last else stream.take()
        pieces += painter.pieces(delivered, tokens, origins, T)
    assert "".join(piece for piece, _ in pieces) == stream.text
    return pieces


def test_tokens_of_one_chunk_keep_their_own_origins() -> None:
    """Catches a whole chunk shown in one colour."""
    assert painted([("ab", [T, A]), ("cde", [A, A, T])]) == [
        ("a", T), ("b", A), ("c", A), ("d", A), ("e", T),
    ]  # fmt: skip


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    """Catches half characters, and text that lags behind its tokens shifting all colours."""
    assert painted([("xé", [T, A, T]), ("y", [A])]) == [("x", T), ("é", T), ("y", A)]


def test_text_held_back_for_a_stop_string_keeps_its_place() -> None:
    """Catches colours that run ahead of text that is held back."""
    assert painted([("ae", [T, A]), ("n", [A]), ("x", [T])], stop="end") == [
        ("a", T), ("enx", T),
    ]  # fmt: skip
    assert painted([("ae", [T, A]), ("nd", [A, A])], stop="end") == [("a", T)]


@given(
    st.lists(
        st.tuples(st.text("aé€😀 \n", min_size=1, max_size=4), st.integers(0, 2**16)),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["", "a", "éa", "€ "]),
)
def test_pieces_always_add_up(chunks: list[tuple[str, int]], stop: str) -> None:
    """Catches a lost or doubled character in any mix of characters, chunks and stop strings."""
    painted(
        [
            (text, [A if bits >> i & 1 else T for i in range(len(text.encode()))])
            for text, bits in chunks
        ],
        stop,
    )


def test_text_without_tokens_is_shown() -> None:
    """Catches the tail that a stream gives at its end being dropped."""
    painter = TokenPainter(tokenizer(), [2], SamplingParams())
    assert list(painter.pieces("x", [], [], T)) == [("x", T)]


def test_sources_have_colours_of_their_own() -> None:
    """Catches a colour for the target's own tokens, or one for all drafters."""
    assert colour_of(T, None) == ""
    colours = {colour_of(A, source) for source in ("suffix", "ngram-table", "dspark")}
    assert len(colours) == 3
    assert colour_of(A, None) in colours
    for source in ("suffix", "ngram-table", "dspark"):
        assert colour_of(A, source) in legend("combined")
        assert colour_of(A, source) in legend(source)
