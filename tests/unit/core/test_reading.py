"""What text is made of."""

import pytest

from outrider.core.reading import Kind, Reading, Texture, traits_of


@pytest.mark.parametrize(
    ("text", "kind", "is_sign"),
    [
        (" house", "word", False),
        ("house", "inside", False),
        (", ", "mark", False),
        (" (", "mark", True),
        ("\n\n", "line", False),
        ("    ", "word", True),
        ("7", "figure", False),
        ("x1", "figure", False),
        ("", "word", False),
    ],
)
def test_tokens_are_told_apart(text: str, kind: Kind, *, is_sign: bool) -> None:
    """Catches a number that counts as a word, and indentation that is no sign of code."""
    assert traits_of(text) == (kind, is_sign)


@pytest.mark.parametrize(
    ("texts", "name"),
    [
        ([], "words"),
        ([" a"] * 20, "words"),
        ([" a"] * 20 + ["1"], "figures"),
        ([" a"] * 10 + ["1", "="], "code"),
    ],
)
def test_textures(texts: list[str], name: str) -> None:
    """Catches shares that are taken of something else than all tokens read."""
    texture = Texture()
    for text in texts:
        texture.read([traits_of(text)])
    assert texture.name == name
    assert texture.num_read == len(texts)


def test_a_cut_draft_keeps_the_kinds_of_its_tokens() -> None:
    """Catches kinds that outlive the tokens they belong to."""
    assert Reading("code", ("word", "mark", "line")).of_first(2) == Reading(
        "code", ("word", "mark")
    )
