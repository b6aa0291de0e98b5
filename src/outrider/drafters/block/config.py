"""The shape of a block drafter, as its `config.json` states it.

The file is flat, in the names that DeepSpec puts on a Qwen3 configuration; where a checkpoint keeps
its block settings in a nested `dflash_config`, as z-lab's do, they are read from there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from outrider.errors import CorruptCheckpoint
from outrider.models.fields import Fields

Layout = Literal["anchor-first", "anchor-drop"]
"""Whether slot 0, which holds the anchor, predicts a token (`anchor-first`) or is dropped."""
MarkovType = Literal["vanilla", "gated", "rnn"]

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
MARKOV_TYPES: tuple[MarkovType, ...] = get_args(MarkovType)

_SMALLEST_BLOCK = {"anchor-first": 1, "anchor-drop": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """A block drafter: network, block layout, heads, and the target it was trained for.

    `target_layer_ids` are 0-based layers of the target whose outputs are fused, -1 the embedding.
    `draft_vocab_size` None means the target's whole vocabulary. `fc_norm` divides every tapped
    layer by its root mean square before fusing. `markov_rank` 0 means no Markov head.
    `target_hash` is `models.fingerprint.target_hash` of the target, empty where it is not known.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    draft_vocab_size: int | None = None
    block_size: int = 7
    layout: Layout = "anchor-first"
    markov_rank: int = 0
    markov_type: MarkovType = "vanilla"
    has_confidence_head: bool = False
    confidence_with_markov: bool = True
    fc_norm: bool = False
    rms_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_context_len: int = 2048
    target_hash: str = ""

    def __post_init__(self) -> None:
        """Refuse shapes that no network can have.

        Raises:
            CorruptCheckpoint: a size is out of range, a layer is not the target's, the mask token
                is outside the vocabulary, or a name is unknown.
        """
        self._check_sizes()
        if self.layout not in LAYOUTS or self.markov_type not in MARKOV_TYPES:
            raise CorruptCheckpoint(
                f"layout {self.layout!r} or Markov head {self.markov_type!r} is unknown; layouts: "
                f"{', '.join(LAYOUTS)}; heads: {', '.join(MARKOV_TYPES)}"
            )
        if self.block_size < _SMALLEST_BLOCK[self.layout]:
            raise CorruptCheckpoint(
                f"block_size is {self.block_size}, which drafts nothing in layout {self.layout}"
            )
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise CorruptCheckpoint(
                f"mask_token_id is {self.mask_token_id}, outside the vocabulary of "
                f"{self.vocab_size} tokens; a draft needs its embedding"
            )
        wrong = [i for i in self.target_layer_ids if not -1 <= i < self.num_target_layers]
        if wrong or not self.target_layer_ids:
            raise CorruptCheckpoint(
                f"target_layer_ids {list(self.target_layer_ids)} must name at least one layer "
                f"from -1 to {self.num_target_layers - 1}"
            )

    @property
    def slots_dropped(self) -> int:
        """Leading slots of a block that predict nothing."""
        return int(self.layout == "anchor-drop")

    @property
    def num_drafts(self) -> int:
        """Draft tokens per block."""
        return self.block_size - self.slots_dropped

    @property
    def head_size(self) -> int:
        """Tokens that can be drafted."""
        return self.vocab_size if self.draft_vocab_size is None else self.draft_vocab_size

    def _check_sizes(self) -> None:
        sizes: tuple[str, ...] = (
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
        )
        sizes += ("head_dim", "vocab_size", "num_target_layers", "max_context_len")
        for name in sizes:
            if getattr(self, name) < 1:
                raise CorruptCheckpoint(f"{name} is {getattr(self, name)}, but it must be positive")
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise CorruptCheckpoint(
                f"{self.num_heads} query heads, {self.num_kv_heads} key heads of {self.head_dim} "
                "dimensions do not fit: the first must be a multiple of the second, the last even"
            )
        if not 1 <= self.head_size <= self.vocab_size:
            raise CorruptCheckpoint(
                f"draft_vocab_size is {self.draft_vocab_size}, outside 1 to {self.vocab_size}"
            )
        if self.markov_rank < 0:
            raise CorruptCheckpoint(f"markov_rank is {self.markov_rank}, but it cannot be negative")

    def to_json(self) -> dict[str, Any]:
        """The content of `config.json`."""
        return {
            "architectures": ["Qwen3DSparkModel"],
            "model_type": "qwen3",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.head_size,
            "rms_norm_eps": self.rms_eps,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": self.max_context_len,
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
            "layer_types": ["full_attention"] * self.num_layers,
            "block_size": self.block_size,
            "sample_from_anchor": self.layout == "anchor-first",
            "mask_token_id": self.mask_token_id,
            "target_layer_ids": list(self.target_layer_ids),
            "num_target_layers": self.num_target_layers,
            "markov_rank": self.markov_rank,
            "markov_head_type": self.markov_type,
            "enable_confidence_head": self.has_confidence_head,
            "confidence_head_with_markov": self.confidence_with_markov,
            "fc_norm": self.fc_norm,
            "target_hash": self.target_hash,
        }


def from_json(values: Mapping[str, Any]) -> BlockConfig:
    """Read the content of a `config.json`.

    Raises:
        CorruptCheckpoint: a field is missing, of the wrong type or out of range.
    """
    nested = values.get("dflash_config")
    fields = Fields({**values, **nested} if isinstance(nested, Mapping) else values)
    # A checkpoint that only fills in masks says so by its class alone.
    fills_masks = "DFlashDraftModel" in fields.items("architectures")
    first = fields.flag("sample_from_anchor", default=not fills_masks)
    rope = fields.section("rope_parameters")
    vocab_size = fields.integer("vocab_size")
    draft_vocab_size = fields.integer("draft_vocab_size", vocab_size)
    return BlockConfig(
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=fields.integer("num_attention_heads"),
        num_kv_heads=fields.integer("num_key_value_heads"),
        head_dim=fields.integer("head_dim"),
        vocab_size=vocab_size,
        draft_vocab_size=None if draft_vocab_size == vocab_size else draft_vocab_size,
        rms_eps=fields.real("rms_norm_eps", 1e-6),
        rope_theta=rope.real("rope_theta", fields.real("rope_theta", 10000.0)),
        max_context_len=fields.integer("max_position_embeddings"),
        block_size=fields.integer("block_size"),
        layout="anchor-first" if first else "anchor-drop",
        mask_token_id=fields.integer("mask_token_id"),
        target_layer_ids=_layer_ids(fields),
        num_target_layers=fields.integer("num_target_layers"),
        markov_rank=fields.integer("markov_rank", 0),
        markov_type=cast(MarkovType, fields.text("markov_head_type", "vanilla")),
        has_confidence_head=fields.flag("enable_confidence_head"),
        confidence_with_markov=fields.flag("confidence_head_with_markov", default=True),
        fc_norm=fields.flag("fc_norm"),
        target_hash=fields.text("target_hash", ""),
    )


def _layer_ids(fields: Fields) -> tuple[int, ...]:
    found = fields.items("target_layer_ids")
    if not found or not all(type(layer) is int for layer in found):
        raise CorruptCheckpoint(
            f"target_layer_ids is {found!r}, but it must list the target's layers; a draft on "
            "other layers than it was trained on is useless"
        )
    return tuple(found)
