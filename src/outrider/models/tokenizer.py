"""Text to token ids and back, the same for Hugging Face directories and GGUF files."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import tokenizers

from outrider.errors import CorruptCheckpoint, ModelNotFound, UnsupportedModel
from outrider.models import bpe
from outrider.models.chat_template import ChatTemplate, Message
from outrider.models.fields import Fields, read_json

LONG_TEXT = 20_000
"""Characters from which others should not have to wait while a text is tokenized."""

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """A tokenizer with its special tokens and chat template."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str],
        add_bos: bool | None = None,
        add_eos: bool | None = None,
        chat_template: str | None = None,
    ) -> None:
        """Wrap `backend`.

        `special_tokens` maps `bos_token`, `eos_token`, ... to their text. With `add_bos` and
        `add_eos` both None, what `encode` adds is up to the backend's own post-processor.
        """
        self.backend = backend
        self._special_tokens = dict(special_tokens)
        self._decides = add_bos is not None or add_eos is not None
        self._add_bos, self._add_eos = bool(add_bos), bool(add_eos)
        self._template_source = chat_template
        self.bos_id = self._special_id("bos_token")
        self.eos_id = self._special_id("eos_token")

    @classmethod
    def from_directory(cls, directory: Path) -> Self:
        """Read `tokenizer.json`, `tokenizer_config.json` and the chat template of a directory.

        Raises:
            ModelNotFound: there is no tokenizer.json.
            CorruptCheckpoint: a file cannot be parsed.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ModelNotFound(
                f"{directory} has no tokenizer.json; save the fast tokenizer of the model there"
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:
            raise CorruptCheckpoint(
                f"{path} cannot be read ({error}); download it again"
            ) from error
        config = read_json(directory / "special_tokens_map.json")
        config |= read_json(directory / "tokenizer_config.json")
        return cls(
            backend,
            special_tokens=_special_texts(config),
            add_bos=config.get("add_bos_token"),
            add_eos=config.get("add_eos_token"),
            chat_template=_template_of(directory, config),
        )

    @classmethod
    def from_gguf(cls, path: Path, metadata: Mapping[str, Any]) -> Self:
        """Build the tokenizer inside the GGUF file at `path`, whose metadata is given.

        Byte-level BPE is built from the metadata. Other kinds are converted by `transformers`.

        Raises:
            UnsupportedModel: the kind or the pre-tokenizer is not known.
            CorruptCheckpoint: vocabulary and merges are absent or broken.
        """
        kind = metadata.get("tokenizer.ggml.model")
        backend = bpe.build(metadata) if kind == "gpt2" else _converted(path, str(kind))
        tokens = metadata.get("tokenizer.ggml.tokens") or []
        texts = {
            name: tokens[index]
            for name, key in zip(_SPECIAL_NAMES, ("bos", "eos", "unknown", "padding"), strict=True)
            if (index := metadata.get(f"tokenizer.ggml.{key}_token_id")) is not None
            and index < len(tokens)
        }
        add_bos = metadata.get("tokenizer.ggml.add_bos_token")
        return cls(
            backend,
            special_tokens=texts,
            add_bos=bpe.adds_bos_by_default(metadata) if add_bos is None else bool(add_bos),
            add_eos=bool(metadata.get("tokenizer.ggml.add_eos_token")),
            chat_template=_text_or_none(metadata, "tokenizer.chat_template"),
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens spelled out in it become their ids."""
        if not (self._decides and add_special_tokens):
            return self._ids(text, add_special_tokens=add_special_tokens)
        ids = self._ids(text, add_special_tokens=False)
        if self._add_bos and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        if self._add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) < LONG_TEXT:
            return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)
        # Of the library's methods those for batches alone let other threads run.
        [one] = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(one.ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that are no whole character become U+FFFD."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **extra: Any
    ) -> list[int]:
        """Token ids of a conversation, through the chat template.

        Raises:
            UnsupportedModel: the checkpoint has no chat template.
            RequestRejected: the template refuses the messages.
        """
        if self.chat_template is None:
            raise UnsupportedModel(
                "the checkpoint has no chat template; pass a plain prompt instead of messages"
            )
        text = self.chat_template.render(
            messages, add_generation_prompt=add_generation_prompt, **extra
        )
        return self.encode(text, add_special_tokens=False)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The template, or None where the checkpoint has none."""
        if self._template_source is None:
            return None
        return ChatTemplate(self._template_source, self._special_tokens)

    @property
    def vocab_size(self) -> int:
        """One more than the highest id; the model's own vocabulary may be padded beyond it."""
        return len(self.table())

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that `decode` skips when asked to."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(index for index, token in added.items() if token.special)

    def token(self, token_id: int) -> str:
        """The vocabulary's spelling of one id (byte-level), empty for an unused id."""
        return self.backend.id_to_token(token_id) or ""

    def table(self) -> tuple[str, ...]:
        """Spelling of every id, for comparing the vocabularies of two checkpoints."""
        return self._table

    def token_bytes(self) -> list[bytes] | None:
        """The bytes each id stands for in a text; None if the vocabulary is not byte-level."""
        if not isinstance(self.backend.decoder, tokenizers.decoders.ByteLevel):
            return None
        byte_of = {ord(text): byte for byte, text in enumerate(bpe.byte_spelling())}
        return [
            bytes(byte_of[ord(char)] for char in text)
            if all(ord(char) in byte_of for char in text)
            else text.encode()
            for text in self._table
        ]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the spellings of all ids: equal where every id means the same."""
        return hashlib.sha256(json.dumps(self._table).encode()).hexdigest()

    @cached_property
    def _table(self) -> tuple[str, ...]:
        vocab = self.backend.get_vocab(with_added_tokens=True)
        spelled = [""] * (max(vocab.values(), default=-1) + 1)
        for text, index in vocab.items():
            spelled[index] = text
        return tuple(spelled)

    def _special_id(self, name: str) -> int | None:
        text = self._special_tokens.get(name)
        return None if text is None else self.backend.token_to_id(text)


def _special_texts(config: Mapping[str, Any]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            texts[name] = text
    return texts


def _template_of(directory: Path, config: Mapping[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CorruptCheckpoint(
                f"{path} is not UTF-8 text ({error}); download it again"
            ) from error
    template = config.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict)]
        defaults = [entry.get("template") for entry in named if entry.get("name") == "default"]
        template = defaults[0] if defaults else None
    if template is not None and not isinstance(template, str):
        raise CorruptCheckpoint(
            f"the chat_template of {directory} is {type(template).__name__}, expected text; "
            "download it again"
        )
    return template


def _text_or_none(metadata: Mapping[str, Any], key: str) -> str | None:
    fields = Fields(metadata)
    return fields.text(key) if fields.has(key) else None


def _converted(path: Path, kind: str) -> tokenizers.Tokenizer:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise UnsupportedModel(
            f"GGUF tokenizer model {kind!r} is built by transformers, which is not installed; "
            "install outrider[hf], or use a GGUF with a byte-level BPE vocabulary"
        ) from error
    try:
        converted = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except (ValueError, NotImplementedError, KeyError, OSError, ImportError) as error:
        raise UnsupportedModel(
            f"GGUF tokenizer model {kind!r} cannot be converted by transformers: {error}"
        ) from error
    backend: tokenizers.Tokenizer = converted.backend_tokenizer
    return backend
