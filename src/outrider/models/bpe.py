"""A `tokenizers.Tokenizer` from the vocabulary inside a GGUF file.

GGUF names the pre-tokenizer (`tokenizer.ggml.pre`) instead of carrying it; each known name is
spelled out here. Only byte-level BPE is built from parts; see `models.tokenizer` for the rest.
"""

from collections.abc import Mapping
from typing import Any, TypeGuard

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from outrider.errors import CorruptCheckpoint, UnsupportedModel

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_FIRST_SHIFTED = 256

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS_AND_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS_AND_WORDS}|\p{{N}}{{1,3}}|{_SYMBOLS_AND_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS_AND_WORDS}|\p{{N}}|{_SYMBOLS_AND_SPACES}"

# Each name's splits, applied one after the other.
_SPLITS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais"), (_GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), (r"\p{N}", _GPT2)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), (_QWEN2,)),
}
_WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3"})
_COMPOSED = frozenset({"qwen2", "deepseek-r1-qwen"})


def pre_tokenizer_name(metadata: Mapping[str, Any]) -> str:
    """The `tokenizer.ggml.pre` of a file; old files without one mean `default`."""
    return str(metadata.get("tokenizer.ggml.pre") or "default")


def adds_bos_by_default(metadata: Mapping[str, Any]) -> bool:
    """Whether a file that does not say wants a begin-of-text token."""
    return pre_tokenizer_name(metadata) in _WHOLE_WORDS_FIRST


def build(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Build the byte-level BPE tokenizer that the metadata describes.

    Raises:
        UnsupportedModel: the pre-tokenizer is not known.
        CorruptCheckpoint: tokens, merges or types are absent or do not fit together.
    """
    name = pre_tokenizer_name(metadata)
    if name not in _SPLITS:
        raise UnsupportedModel(
            f"GGUF pre-tokenizer {name!r} is not implemented; supported: "
            f"{', '.join(sorted(_SPLITS))}"
        )
    tokens, kinds, merges = _vocabulary(metadata)
    vocab = {
        token: index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind != _UNUSED
    }
    try:
        model = models.BPE(vocab=vocab, merges=merges, ignore_merges=name in _WHOLE_WORDS_FIRST)
    except Exception as error:
        raise CorruptCheckpoint(f"the GGUF vocabulary cannot be used: {error}") from error
    tokenizer = tokenizers.Tokenizer(model)
    if name in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS[name]]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    for special, wanted in ((True, _CONTROL), (False, _USER_DEFINED)):
        added = [
            AddedToken(token, special=special, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == wanted
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    return tokenizer


def byte_spelling() -> list[str]:
    """The printable stand-in of every byte in byte-level BPE (Radford et al. 2019)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(_FIRST_SHIFTED, 2 * _FIRST_SHIFTED))
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]


def _vocabulary(metadata: Mapping[str, Any]) -> tuple[list[str], list[int], list[tuple[str, str]]]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    merges = metadata.get("tokenizer.ggml.merges")
    if not _is_list_of_text(tokens) or not _is_list_of_text(merges):
        raise CorruptCheckpoint(
            "the GGUF file lacks tokenizer.ggml.tokens or tokenizer.ggml.merges; "
            "convert it again with its tokenizer"
        )
    kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise CorruptCheckpoint(
            f"tokenizer.ggml.token_type does not give one type for each of {len(tokens)} tokens"
        )
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    broken = [merge for merge, pair in zip(merges, pairs, strict=True) if len(pair) == 1]
    if broken:
        raise CorruptCheckpoint(f"GGUF merge {broken[0]!r} does not name two tokens")
    return tokens, kinds, [(left, right) for left, right in pairs]


def _is_list_of_text(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
