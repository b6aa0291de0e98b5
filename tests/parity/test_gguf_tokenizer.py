"""Our tokenizer from GGUF metadata against the conversion of transformers."""

import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from outrider.models.checkpoint import open_checkpoint
from outrider.models.tokenizer import Tokenizer

TEXTS: Final = (
    "Hello, world! It's 2024; don't you think we'll see?",
    "def f(x):\n\treturn x**2 + 3.14159  # π\n\n\nclass A:\n    pass\n",
    "for (int i = 0; i < n; ++i) { a[i] ^= b[i] << 3; }\r\n\r\n",
    "日本語のテキスト、漢字とかな。한국어 텍스트",
    "😀👩\u200d👩\u200d👧\u200d👦🇫🇷 emoji \u00a0nbsp\u200bzwsp",
    "   leading  and   trailing   ",
    "1234567890 12 3456 0.5e-10 0xFF",
    " 's 'S IT'S I'LL we'll ''''",
    "naïve façade — “quotes” …",
    "x\n\n  y\t\tz \n",
    "العربية हिन्दी",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "a" * 60,
    " ",
    "\n",
    "",
)
CHAT: Final = [
    {"role": "user", "content": "if a < b && c: print('é')"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "why?"},
]


@pytest.fixture(scope="module")
def ours(default_model: Path) -> Tokenizer:
    return open_checkpoint(default_model).tokenizer


@pytest.fixture(scope="module")
def theirs(default_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(default_model.parent, gguf_file=default_model.name)


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_ids_agree_and_come_back(text: str, ours: Tokenizer, theirs: Any) -> None:
    """Catches a wrong split pattern, a special token split into pieces, a wrong byte alphabet."""
    ids = ours.encode(text)
    assert ids == theirs.encode(text)
    assert ours.decode(ids, skip_special_tokens=False) == text
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.model
def test_digits_of_every_script_stand_alone(ours: Tokenizer) -> None:
    """Catches the conversion's one slip being copied: it joins other digits to a space before."""
    for text in (" 7", " ½", " ²", " \u0661"):
        assert ours.token(ours.encode(text)[0]) == "Ġ"


@pytest.mark.model
def test_chat_reads_the_same(ours: Tokenizer, theirs: Any) -> None:
    """Catches white space kept or lost around template blocks, and escaped HTML."""
    assert ours.chat_template is not None
    text = ours.chat_template.render(CHAT)
    expected = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert text == expected
    assert ours.encode_chat(CHAT) == theirs.encode(expected, add_special_tokens=False)


@pytest.mark.model
def test_table_special_ids_and_ends(ours: Tokenizer, theirs: Any) -> None:
    """Catches ids shifted by added tokens, or a special token that decoding would print."""
    assert ours.vocab_size == 49152
    assert list(ours.table()) == theirs.convert_ids_to_tokens(list(range(49152)))
    assert (ours.bos_id, ours.eos_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.special_ids == frozenset(range(17))


def test_sentencepiece_file_is_converted_or_refused(tmp_path: Path) -> None:
    """Catches a SentencePiece vocabulary read as byte-level BPE."""
    from outrider.errors import UnsupportedModel

    metadata = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "a"]}
    broken = tmp_path / "broken.gguf"
    shutil.copy(__file__, broken)
    with pytest.raises(UnsupportedModel, match="'llama'"):
        Tokenizer.from_gguf(broken, metadata)
