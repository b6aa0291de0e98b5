"""Forms compiled for a model's vocabulary: what is accepted, what is refused and how."""

import json
import sys
from collections.abc import Sequence

import pytest

from outrider.core.matcher import TokenMatcher
from outrider.core.request import StructuredOutputsParams
from outrider.engine.grammar import JSON_SPACE, GrammarCompiler
from outrider.errors import RequestRejected
from outrider.models.tokenizer import Tokenizer
from outrider.testing.tiny import EOS, EOS_ID, byte_tokenizer
from tests import harness

harness.require_module("llguidance")

PADDED = 262
TOKENIZER = Tokenizer(byte_tokenizer(258), special_tokens={"eos_token": EOS})
COMPILER = GrammarCompiler(TOKENIZER, PADDED, frozenset({EOS_ID}))


def tokens_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def may_come(matcher: TokenMatcher, text: str) -> set[str]:
    """Characters that may follow; `<end>` for the end."""
    mask = matcher.masks(tokens_of(text), [])[0]
    ids = [token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1]
    assert all(token < TOKENIZER.vocab_size for token in ids), "padding is no text"
    return {"<end>" if token == EOS_ID else TOKENIZER.decode([token]) for token in ids}


def takes(form: StructuredOutputsParams, text: str) -> bool:
    """Whether the text can be written and ended."""
    matcher = COMPILER.matcher(form)
    return matcher.num_fitting([], [*tokens_of(text), EOS_ID]) == len(tokens_of(text)) + 1


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"enum": ["x", "é\n"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (
            StructuredOutputsParams(json=SCHEMA),
            ['{"a":3,"b":"x"}', '{ "a" : 44,\n\t"b": "é\\n" }'],
            ['{"a":2,"b":"x"}', '{"b":"x","a":3}', '{"a":3}', '{"a":3,"b":"x"} ', "{}", ""],
        ),
        (
            StructuredOutputsParams(json_object=True),
            ["{}", '{"k": [1, null, {"x": true}]}'],
            ["[]", '"a"', "{} ", " {}", '{"k"}'],
        ),
        (
            StructuredOutputsParams(regex=r"\d{2}/[a-c]+|é"),
            ["12/abc", "é"],
            ["1/a", "12/", "12/abd", "12/abc "],
        ),
        (
            StructuredOutputsParams(
                choice=("yes", 'n"o', "back\\slash", "two\nlines", "é😀", "a/b")
            ),
            ["yes", 'n"o', "back\\slash", "two\nlines", "é😀", "a/b"],
            ["ye", "yes ", "no", "back\\\\slash"],
        ),
        (
            StructuredOutputsParams(grammar='start: "(" start ")" | "x"'),
            ["x", "((x))"],
            ["(x", "()", "xx"],
        ),
    ],
    ids=["json", "json_object", "regex", "choice", "grammar"],
)
def test_texts_of_a_form(form: StructuredOutputsParams, good: list[str], bad: list[str]) -> None:
    """Catches a form that is translated to another one."""
    assert [text for text in good if not takes(form, text)] == []
    assert [text for text in bad if takes(form, text)] == []


def test_only_the_end_follows_a_complete_text() -> None:
    """Catches white space behind a JSON text, and an end that comes too early."""
    matcher = COMPILER.matcher(StructuredOutputsParams(json={"enum": [1, 12]}))
    assert may_come(matcher, "") == {"1"}
    assert may_come(matcher, "1") == {"2", "<end>"}
    assert may_come(matcher, "12") == {"<end>"}


def test_white_space_has_a_bound() -> None:
    """Catches a model that pads a JSON text for ever."""
    form = StructuredOutputsParams(json_object=True)
    assert takes(form, "{" + 40 * " " + "}")
    assert not takes(form, "{" + 41 * " " + "}")
    assert "40" in JSON_SPACE
    free = StructuredOutputsParams(
        json={"type": "object", "x-guidance": {"whitespace_pattern": "[ ]+"}}
    )
    assert takes(free, "{" + 41 * " " + "}")


@pytest.mark.parametrize(
    ("form", "named"),
    [
        (StructuredOutputsParams(regex="(a"), "unclosed group"),
        (StructuredOutputsParams(regex="a(?=b)"), "look-around"),
        (StructuredOutputsParams(grammar="start: b"), "unknown name"),
        (StructuredOutputsParams(grammar="start: start"), "no token"),
        (StructuredOutputsParams(json={"type": "wibble"}), "wibble"),
        (StructuredOutputsParams(json={"not": {"type": "string"}}), "not"),
        (StructuredOutputsParams(json={"$ref": "#/nowhere"}), "nowhere"),
        (StructuredOutputsParams(json={"$ref": "http://example.invalid/x"}), "example"),
        (StructuredOutputsParams(json={"type": "integer", "minimum": 5, "maximum": 3}), "minimum"),
        (StructuredOutputsParams(json={"x-guidance": 3}), "x-guidance"),
        (StructuredOutputsParams(json=json.loads('{"items":' * 300 + "{}" + "}" * 300)), "limit"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_what_cannot_be_compiled_is_refused_with_a_reason(
    form: StructuredOutputsParams, named: str
) -> None:
    """Catches a form that fails while others are served, or a message that names nothing."""
    with pytest.raises(RequestRejected, match="structured_outputs cannot be used") as refused:
        COMPILER.matcher(form)
    assert named in str(refused.value)


def test_a_reason_has_a_bound() -> None:
    """Catches an answer that sends a stranger's long pattern back."""
    with pytest.raises(RequestRejected) as refused:
        COMPILER.matcher(StructuredOutputsParams(regex="(" * 20_000))
    assert len(str(refused.value)) < 400


HEAVY = {
    "repeats": StructuredOutputsParams(regex="((a{1,200}){1,200}){1,200}b"),
    "states": StructuredOutputsParams(regex="(a|b)*a(a|b){60}c"),
    "names": StructuredOutputsParams(
        json={"properties": {f"name{i}": {"type": "string"} for i in range(1500)}}
    ),
    "ambiguous": StructuredOutputsParams(grammar='start: start start | "a" | "b" |'),
}


@pytest.mark.parametrize("name", HEAVY)
def test_heavy_forms_answer_or_fail_by_themselves(name: str) -> None:
    """Catches a form that takes the engine down instead of its request."""
    matcher = COMPILER.matcher(HEAVY[name])
    output: list[int] = []
    for token in tokens_of("abba" * 6):
        mask = matcher.masks(output, [])[0]
        if not mask[token // 8] >> token % 8 & 1:
            assert any(mask) or matcher.fault
            return
        output.append(token)


def test_a_fault_is_forgotten_where_the_text_is_another() -> None:
    """Catches a matcher that stays broken after drafts that led nowhere."""
    matcher = COMPILER.matcher(StructuredOutputsParams(regex="ab|c"))
    first = matcher.masks([], tokens_of("x"))
    assert first[1] == bytes(len(first[1]))
    assert may_come(matcher, "a") == {"b"}
    assert matcher.fault is None


def test_a_grammar_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a cache that compiles for every request, or that keeps refusals."""
    compiler = GrammarCompiler(TOKENIZER, PADDED, frozenset({EOS_ID}))
    compiler.matcher(StructuredOutputsParams(regex="a+"))
    monkeypatch.setattr("outrider.engine.grammar._source", _refuse)
    compiler.matcher(StructuredOutputsParams(regex="a+"))
    with pytest.raises(LookupError):
        compiler.matcher(StructuredOutputsParams(regex="b+"))


def _refuse(*_: object) -> str:
    raise LookupError


def test_matchers_of_one_grammar_do_not_share_their_place() -> None:
    """Catches continuations of one prompt that move each other."""
    form = StructuredOutputsParams(regex="ab|ba")
    one, other = COMPILER.matcher(form), COMPILER.matcher(form)
    assert may_come(one, "a") == {"b"}
    assert may_come(other, "b") == {"a"}
    assert may_come(one, "a") == {"b"}


def test_a_vocabulary_that_is_not_byte_level() -> None:
    """Catches a tokenizer of another kind whose spellings are taken for bytes."""
    import tokenizers
    from tokenizers import decoders, models

    vocab = {"<s>": 0, "</s>": 1, "▁a": 2, "b": 3, "▁": 4, "<0xC3>": 5, "<0xA9>": 6, "<unk>": 7}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_special_tokens(["<s>", "</s>", "<unk>"])
    made = GrammarCompiler(
        Tokenizer(backend, special_tokens={"eos_token": "</s>"}), 9, frozenset({1})
    )
    matcher = made.matcher(StructuredOutputsParams(regex=" aéb*"))
    path: Sequence[int] = [2, 5, 6, 3]
    for length, wanted in enumerate(({2, 4}, {5}, {6}, {1, 3}, {1, 3})):
        mask = matcher.masks(path[:length], [])[0]
        assert {i for i in range(8 * len(mask)) if mask[i // 8] >> i % 8 & 1} == wanted


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches an import error, or a form that is silently ignored."""
    monkeypatch.setitem(sys.modules, "llguidance", None)
    compiler = GrammarCompiler(TOKENIZER, PADDED, frozenset({EOS_ID}))
    with pytest.raises(RequestRejected, match=r"outrider\[serve\]"):
        compiler.matcher(StructuredOutputsParams(regex="a"))


def test_a_model_without_an_end_is_refused() -> None:
    """Catches a request that could never end."""
    compiler = GrammarCompiler(TOKENIZER, PADDED, frozenset())
    with pytest.raises(RequestRejected, match="end-of-sequence"):
        compiler.matcher(StructuredOutputsParams(regex="a"))


def test_a_draft_that_breaks_the_library_harms_nobody() -> None:
    """Catches a request that fails for a token which was only drafted."""
    texts = " | ".join(json.dumps(str(number)) for number in range(6000))
    form = StructuredOutputsParams(grammar=f'start: {texts} | "a"')
    untouched = COMPILER.matcher(form).masks([], [])
    matcher = COMPILER.matcher(form)
    matcher.num_fitting([], tokens_of("7"))
    assert matcher.masks([], []) == untouched
    assert not matcher.fault
    assert matcher.masks([], tokens_of("7"))[0] == untouched[0]
    assert "6002 items" in str(matcher.fault), "what broke is told where nothing may come"
    assert matcher.num_fitting([], tokens_of("a")) == 1


def test_there_may_be_thousands_of_choices() -> None:
    """Catches a grammar whose work grows with the number of texts."""
    form = StructuredOutputsParams(choice=tuple(map(str, range(8000))))
    matcher = COMPILER.matcher(form)
    assert may_come(matcher, "79") == {*"0123456789", "<end>"}
    assert may_come(matcher, "799") == {*"0123456789", "<end>"}
    assert may_come(matcher, "7999") == {"<end>"}
