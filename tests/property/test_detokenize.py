"""Text that grows token by token: nothing lost, nothing repeated, nothing taken back."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.detokenize import REPLACEMENT, TextStream


class Bytes:
    """A tokenizer of single bytes, id 256 special; a text starts without its leading space."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        raw = b"".join(
            (b"" if skip_special_tokens else b"<s>") if i == 256 else bytes([i]) for i in ids
        )
        return raw.decode("utf-8", errors="replace")


class Words:
    """Words with a space before them, which the first one of a text loses."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(f" w{i}" for i in ids)[1:]


def tokens_of(text: str) -> list[int]:
    return list(text.encode("utf-8"))


def streamed(stream: TextStream, tokens: Sequence[int], takes: Sequence[bool]) -> list[str]:
    """Push tokens, take text where told, finish; the pieces that came out."""
    pieces = []
    for token, take in zip(tokens, takes, strict=True):
        stopped = stream.push(token)
        if stopped is not None:
            break
        if take:
            pieces.append(stream.take())
    return [*pieces, stream.finish()]


TEXT = st.text(
    st.sampled_from("ab \N{EURO SIGN}\N{GRINNING FACE}\N{LATIN SMALL LETTER E WITH ACUTE}")
)


@given(TEXT, TEXT, st.randoms(use_true_random=False))
def test_pieces_add_up_to_the_text(prompt: str, text: str, random: object) -> None:
    """Catches characters of two to four bytes that are cut, doubled or lost between tokens."""
    tokens = tokens_of(text)
    takes = [random.random() < 0.5 for _ in tokens]  # type: ignore[attr-defined]
    stream = TextStream(Bytes(), tokens_of(prompt))
    pieces = streamed(stream, tokens, takes)
    assert "".join(pieces) == stream.text == text
    assert not any(REPLACEMENT in piece for piece in pieces)


@given(st.lists(st.integers(0, 256), max_size=20), st.booleans())
def test_any_bytes_add_up(tokens: list[int], takes_all: bool) -> None:
    """Catches bytes that are no UTF-8 at all and stop a stream, or come out twice."""
    stream = TextStream(Bytes(), ())
    pieces = streamed(stream, tokens, [takes_all] * len(tokens))
    assert "".join(pieces) == stream.text


@given(
    st.text(st.sampled_from("ab"), max_size=16),
    st.lists(st.text(st.sampled_from("ab"), min_size=1, max_size=4), max_size=3),
    st.lists(st.booleans(), min_size=16, max_size=16),
)
def test_stop_strings(text: str, stops: list[str], takes: list[bool]) -> None:
    """Catches a stop that is found late or twice, and text of it that was already delivered."""
    stream = TextStream(Bytes(), (), stop=stops)
    pieces = streamed(stream, tokens_of(text), takes[: len(text)])
    expected = text
    for end in range(1, len(text) + 1):
        found = [text[:end].index(stop) for stop in stops if stop in text[:end]]
        if found:
            expected = text[: min(found)]
            break
    assert "".join(pieces) == stream.text == expected


def test_an_unfinished_character_is_held_back_and_shown_at_the_end() -> None:
    """Catches a replacement character that is shown and then replaced."""
    first, second, third = tokens_of("\N{EURO SIGN}")
    stream = TextStream(Bytes(), ())
    for token in (first, second):
        stream.push(token)
        assert stream.take() == ""
    stream.push(third)
    assert stream.take() == "\N{EURO SIGN}"
    stream.push(first)
    assert stream.take() == ""
    assert stream.finish() == REPLACEMENT
    assert stream.text == "\N{EURO SIGN}" + REPLACEMENT


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    """Catches text that reaches the client although it turns out to be a stop string."""
    stream = TextStream(Bytes(), (), stop=("abc",))
    given_out = []
    for token in tokens_of("xabab"):
        assert stream.push(token) is None
        given_out.append(stream.take())
    assert given_out == ["x", "", "", "ab", ""]
    assert stream.push(ord("c")) == "abc"
    assert stream.finish() == ""
    assert stream.text == "xab"


def test_a_stop_before_it_is_allowed_is_text() -> None:
    """Catches a stop string that counts although min_tokens is not reached."""
    stream = TextStream(Bytes(), (), stop=("b",))
    for token in tokens_of("ab"):
        assert stream.push(token, may_stop=False) is None
    assert stream.push(ord("a")) is None
    assert stream.push(ord("b")) == "b"
    assert stream.text == "aba"


@pytest.mark.parametrize("skips", [True, False])
def test_special_tokens(skips: bool) -> None:
    """Catches special tokens in the text of a request that wants none, or the reverse."""
    stream = TextStream(Bytes(), (256,), skip_special_tokens=skips)
    for token in (ord("a"), 256, ord("b")):
        stream.push(token)
    assert stream.finish() == ("ab" if skips else "a<s>b")


def test_the_space_between_prompt_and_output_is_kept() -> None:
    """Catches an output decoded on its own, whose first word loses its space."""
    stream = TextStream(Words(), (1, 2))
    stream.push(3)
    stream.push(4)
    assert stream.finish() == " w3 w4"
