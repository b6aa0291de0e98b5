"""Tokenizers of directories and of GGUF vocabularies."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from outrider.errors import CorruptCheckpoint, ModelNotFound, UnsupportedModel
from outrider.models import bpe
from outrider.models.tokenizer import LONG_TEXT, Tokenizer
from outrider.testing.tiny import byte_tokenizer, tiny_spec, write_tiny_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_checkpoint(tmp_path, tiny_spec(vocab_size=300), seed=1)


def configure(folder: Path, **changes: Any) -> Tokenizer:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return Tokenizer.from_directory(folder)


@pytest.mark.parametrize("text", ["", "hello\n", "日本 \t é 😀", "\x00\x7f\u0080"])
def test_bytes_come_back(text: str, folder: Path) -> None:
    """Catches a byte alphabet with a hole in it."""
    tokenizer = Tokenizer.from_directory(folder)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text.encode())


def test_long_texts_are_tokenized_like_short_ones(folder: Path) -> None:
    """Catches a way around the special tokens, or other ids, where the length decides."""
    tokenizer = configure(folder, add_bos_token=True)
    text = "a é<|eos|>😀\n" * (LONG_TEXT // 4)
    for add in (True, False):
        want = tokenizer.backend.encode(text, add_special_tokens=False).ids
        ids = tokenizer.encode(text, add_special_tokens=add)
        assert ids[-len(want) :] == want
        assert len(ids) == len(tokenizer.encode("", add_special_tokens=add)) + len(want)


def test_special_tokens_are_one_id_and_skipped(folder: Path) -> None:
    """Catches special tokens split into characters or printed to the user."""
    tokenizer = Tokenizer.from_directory(folder)
    assert tokenizer.encode("a<|eos|>") == [tokenizer.encode("a")[0], 1]
    assert tokenizer.decode([0, 5, 1]) == tokenizer.decode([5])
    assert tokenizer.decode([0], skip_special_tokens=False) == "<|bos|>"
    assert tokenizer.special_ids == {0, 1}
    assert (tokenizer.bos_id, tokenizer.eos_id) == (0, 1)


@pytest.mark.parametrize(
    ("changes", "added"),
    [
        ({}, ([], [])),
        ({"add_bos_token": True}, ([0], [])),
        ({"add_eos_token": True}, ([], [1])),
        ({"add_bos_token": True, "add_eos_token": True}, ([0], [1])),
        ({"add_bos_token": False}, ([], [])),
        ({"add_bos_token": True, "bos_token": {"content": "<|bos|>"}}, ([0], [])),
        ({"add_bos_token": True, "bos_token": None}, ([], [])),
    ],
)
def test_configured_ends_are_added(
    changes: dict[str, Any], added: tuple[list[int], list[int]], folder: Path
) -> None:
    """Catches a begin-of-text token lost, doubled, or added to a rendered chat."""
    tokenizer = configure(folder, **changes)
    plain = tokenizer.encode("hi", add_special_tokens=False)
    assert tokenizer.encode("hi") == [*added[0], *plain, *added[1]]
    assert 0 not in plain
    assert 0 not in tokenizer.encode_chat([{"role": "user", "content": "hi"}])


def test_own_post_processor_is_obeyed_unless_the_config_decides(folder: Path) -> None:
    """Catches a Llama 3 style tokenizer.json whose begin-of-text is dropped or doubled."""
    from tokenizers.processors import TemplateProcessing

    backend = byte_tokenizer(300)
    backend.post_processor = TemplateProcessing("<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    backend.save(str(folder / "tokenizer.json"))
    plain = Tokenizer.from_directory(folder).encode("x", add_special_tokens=False)
    assert Tokenizer.from_directory(folder).encode("x") == [0, *plain]
    assert configure(folder, add_bos_token=True).encode("x") == [0, *plain]
    assert configure(folder, add_bos_token=False).encode("x") == plain


def test_table_has_every_id(folder: Path) -> None:
    """Catches a compatibility check that compares lists of different meaning."""
    tokenizer = Tokenizer.from_directory(folder)
    table = tokenizer.table()
    assert tokenizer.vocab_size == len(table) == 258
    assert table[:2] == ("<|bos|>", "<|eos|>")
    assert all(tokenizer.token(index) == text for index, text in enumerate(table))
    assert tokenizer.token(299) == ""


def test_template_file_wins_and_named_templates_are_understood(folder: Path) -> None:
    """Catches chat rendered by a stale or by the wrong one of several templates."""
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    template = configure(folder, chat_template=named).chat_template
    assert template is not None
    assert template.render([]) == "D"
    (folder / "chat_template.jinja").write_text("J{{ bos_token }}")
    template = Tokenizer.from_directory(folder).chat_template
    assert template is not None
    assert template.render([]) == "J<|bos|>"


def test_no_template_is_said(folder: Path) -> None:
    """Catches an AttributeError on a base model."""
    tokenizer = configure(folder, chat_template=None)
    assert tokenizer.chat_template is None
    with pytest.raises(UnsupportedModel, match="no chat template"):
        tokenizer.encode_chat([{"role": "user", "content": "hi"}])


def test_absent_or_broken_files(folder: Path) -> None:
    """Catches errors of the tokenizers package reaching the user."""
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CorruptCheckpoint, match=r"tokenizer\.json"):
        Tokenizer.from_directory(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
        Tokenizer.from_directory(folder)


LETTERS: Final = ["Ġ", *"abcdefghijklmnopqrstuvwxyz0123456789.'", "Ċ", "Ì", "ģ", "Ã", "©"]


def vocabulary(pre: str | None, **changes: Any) -> dict[str, Any]:
    tokens = ["<|end|>", "<tool>", *LETTERS, "12", "123", "ab", "abc", "[PAD]"]
    kinds = [3, 4, *[1] * (len(tokens) - 3), 5]
    values: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["1 2", "12 3", "a b"],
        "tokenizer.ggml.bos_token_id": 0,
    }
    if pre is not None:
        values["tokenizer.ggml.pre"] = pre
    return values | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def pieces(text: str, pre: str | None, **changes: Any) -> list[str]:
    tokenizer = Tokenizer.from_gguf(Path("x.gguf"), vocabulary(pre, **changes))
    return [tokenizer.token(index) for index in tokenizer.encode(text)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["123", "4"]),
        ("smollm", ["1", "2", "3", "4"]),
        ("qwen2", ["1", "2", "3", "4"]),
        ("llama-bpe", ["<|end|>", "123", "4"]),
        (None, ["123", "4"]),
    ],
)
def test_each_pre_tokenizer_cuts_numbers_its_way(pre: str | None, expected: list[str]) -> None:
    """Catches one pattern used for all, and llama's begin-of-text left out."""
    assert pieces("1234", pre) == expected


def test_words_of_the_vocabulary_come_first_only_for_llama() -> None:
    """Catches ignore_merges being set for everyone or for no one: `abc` has no merge."""
    assert pieces("abc", "llama-bpe", add_bos_token=False) == ["abc"]
    assert pieces("abc", "qwen2") == ["ab", "c"]


def test_qwen_composes_characters() -> None:
    """Catches the normaliser of the original tokenizer being forgotten."""
    assert pieces("e\u0301", "qwen2") == ["Ã", "©"]
    assert pieces("e\u0301", "gpt-2") == ["e", "Ì", "ģ"]


def test_kinds_of_tokens() -> None:
    """Catches control tokens printed, user-defined ones skipped, padding in the table."""
    tokenizer = Tokenizer.from_gguf(Path("x.gguf"), vocabulary("qwen2"))
    ids = tokenizer.encode("a<tool><|end|>")
    assert ids == [3, 1, 0]
    assert tokenizer.decode(ids) == "a<tool>"
    assert "[PAD]" not in tokenizer.table()


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"merges": None}, CorruptCheckpoint, "merges"),
        ({"merges": [1]}, CorruptCheckpoint, "merges"),
        ({"merges": ["ab"]}, CorruptCheckpoint, "'ab'"),
        ({"merges": ["a zz"]}, CorruptCheckpoint, "zz"),
        ({"token_type": [1]}, CorruptCheckpoint, "token_type"),
        ({"tokens": None}, CorruptCheckpoint, "tokens"),
    ],
)
def test_broken_vocabularies(changes: dict[str, Any], error: type[Exception], named: str) -> None:
    """Catches a tokenizer that is built and splits everything wrongly."""
    with pytest.raises(error, match=named):
        bpe.build(vocabulary("qwen2", **changes))


def test_unknown_pre_tokenizer_is_named() -> None:
    """Catches text split by a pattern that the model was not trained with."""
    with pytest.raises(UnsupportedModel, match=r"'tekken'.*qwen2"):
        bpe.build(vocabulary("tekken"))


@pytest.mark.parametrize("template", [5, {"a": "b"}, [{"name": "default", "template": 5}], True])
def test_templates_of_other_types_are_damage(template: object, folder: Path) -> None:
    """Catches a template that only fails when a conversation begins."""
    config = {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CorruptCheckpoint, match="chat_template"):
        Tokenizer.from_directory(folder)


@pytest.mark.parametrize("template", [[], [5], [{"name": "tool_use", "template": "x"}], [{}]])
def test_lists_without_a_default_template_are_none(template: object, folder: Path) -> None:
    """Catches a KeyError where the checkpoint names other templates only."""
    config = {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.from_directory(folder).chat_template is None


def test_a_template_file_of_other_bytes_is_damage(folder: Path) -> None:
    """Catches a decoding error of Python's own."""
    (folder / "chat_template.jinja").write_bytes(b"{{ '\xff\xfe' }}")
    with pytest.raises(CorruptCheckpoint, match=r"chat_template\.jinja is not UTF-8"):
        Tokenizer.from_directory(folder)


def test_a_gguf_template_of_another_type_is_damage() -> None:
    """Catches a number handed to the template engine."""
    values = vocabulary("qwen2") | {"tokenizer.chat_template": 5}
    with pytest.raises(CorruptCheckpoint, match="chat_template"):
        Tokenizer.from_gguf(Path("x.gguf"), values)
