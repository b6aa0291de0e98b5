"""A block drafter's configuration held against its target, setting by setting."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from outrider.analysis.doctor.files import SPECULATORS, BlockFiles
from outrider.analysis.doctor.findings import Finding
from outrider.drafters.block.config import BlockConfig, from_json
from outrider.errors import ModelError
from outrider.models.checkpoint import Checkpoint
from outrider.models.fields import Fields
from outrider.models.fingerprint import target_hash
from outrider.models.spec import ModelSpec

_SIZES: Final = (
    ("hidden_size", "hidden-size", "hidden_size"),
    ("vocab_size", "vocab-size", "vocab_size"),
    ("num_target_layers", "target-layers", "num_layers"),
)
_CLASSES: Final = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"} | {
    "Qwen3ForCausalLM": "qwen3"
}
_SHORT_HASH: Final = 12
MOST_LAYERS: Final = 256
"""More layers than this are damage, and would take for ever to lay out."""


def check_configuration(files: BlockFiles, target: Checkpoint) -> Iterator[Finding]:
    """Find what does not fit; settings that are absent or mistyped are left to `read_config`."""
    fields, spec = files.fields, target.spec
    if files.is_foreign:
        yield Finding("schema-foreign", f"the files are in the schema of {files.schema}")
    for name, finding, own in _SIZES:
        found = _whole(fields, name)
        if found is not None and found != getattr(spec, own):
            yield Finding(finding, f"{name} is {found}, the target's {getattr(spec, own)}", name)
    yield from _target_identity(files, target)
    yield from _taps(fields, spec)
    yield from _mask(fields, target)
    yield from _rotary(fields, spec)
    yield from _block(files)
    kinds = Fields(fields).items("layer_types")
    if any(kind != "full_attention" for kind in kinds) or fields.get("use_sliding_window"):
        yield Finding("sliding-window", f"layer_types is {kinds}", "layer_types")
    context = _whole(fields, "max_position_embeddings")
    if context is not None and context < spec.max_context_len:
        yield Finding(
            "context-short",
            f"the drafter was made for {context} tokens, the target for {spec.max_context_len}",
            "max_position_embeddings",
        )
    eps = fields.get("rms_norm_eps")
    if isinstance(eps, float) and abs(eps - spec.norm_eps) > spec.norm_eps / 2:
        yield Finding("norm-eps", f"{eps:g}, the target's {spec.norm_eps:g}", "rms_norm_eps")
    if fields.get("enable_confidence_head") is False:
        yield Finding("confidence-none", "enable_confidence_head is false")


def read_config(files: BlockFiles, known: set[str]) -> tuple[BlockConfig | None, list[Finding]]:
    """Read the configuration as the engine does; `known` are ids that explain a refusal."""
    try:
        config = from_json(files.fields)
        if config.num_layers > MOST_LAYERS:
            detail = f"num_hidden_layers is {config.num_layers}, above {MOST_LAYERS}"
            return None, [Finding("config-field", detail, "num_hidden_layers")]
        return config, []
    except (ModelError, TypeError) as error:
        if known & {"tap-outside", "mask-outside", "block-size"}:
            return None, []
        return None, [Finding("config-field", str(error))]


def _whole(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _target_identity(files: BlockFiles, target: Checkpoint) -> Iterator[Finding]:
    wanted = files.fields.get("target_hash") or ""
    if not wanted:
        yield Finding("target-hash-unknown", "config.json has no target_hash")
    elif wanted != (found := target_hash(target)):
        yield Finding(
            "target-hash",
            f"trained for {str(wanted)[:_SHORT_HASH]}, the target is {found[:_SHORT_HASH]}",
            "target_hash",
        )
    if files.schema != SPECULATORS:
        return
    settings = files.raw.get("speculators_config")
    verifier = settings.get("verifier") if isinstance(settings, Mapping) else None
    named = Fields(verifier).items("architectures") if isinstance(verifier, Mapping) else []
    for name in named:
        if _CLASSES.get(str(name), target.spec.architecture) != target.spec.architecture:
            yield Finding(
                "target-architecture",
                f"made for a {name}, the target is {target.spec.architecture}",
                "verifier",
            )


def _taps(fields: Mapping[str, Any], spec: ModelSpec) -> Iterator[Finding]:
    taps = fields.get("target_layer_ids")
    if not isinstance(taps, list) or not all(type(tap) is int for tap in taps):
        return
    outside = [tap for tap in taps if not -1 <= tap < spec.num_layers]
    if outside:
        yield Finding(
            "tap-outside",
            f"target_layer_ids names {outside}, the target has layers 0 to {spec.num_layers - 1}",
            "target_layer_ids",
        )
    if any(later <= earlier for earlier, later in pairwise(taps)):
        yield Finding("tap-order", f"target_layer_ids is {taps}", "target_layer_ids")
    if spec.num_layers - 1 in taps:
        yield Finding(
            "tap-last-layer", f"layer {spec.num_layers - 1} is the last", "target_layer_ids"
        )


def _mask(fields: Mapping[str, Any], target: Checkpoint) -> Iterator[Finding]:
    mask = _whole(fields, "mask_token_id")
    if mask is None:
        return
    if not 0 <= mask < target.spec.vocab_size:
        yield Finding(
            "mask-outside",
            f"mask_token_id is {mask}, the target has {target.spec.vocab_size} tokens",
            "mask_token_id",
        )
        return
    tokenizer = target.tokenizer
    text = tokenizer.token(mask)
    if text and mask not in tokenizer.special_ids:
        yield Finding("mask-is-text", f"token {mask} is {text!r}", "mask_token_id")


def _rotary(fields: Mapping[str, Any], spec: ModelSpec) -> Iterator[Finding]:
    sections = [fields.get(name) for name in ("rope_parameters", "rope_scaling")]
    given = [section for section in sections if isinstance(section, Mapping)]
    theta = next((s["rope_theta"] for s in given if "rope_theta" in s), fields.get("rope_theta"))
    if isinstance(theta, (int, float)) and theta != spec.rope.theta:
        yield Finding("rope-theta", f"{theta:g}, the target's is {spec.rope.theta:g}", "rope_theta")
    kinds = [section.get("rope_type", section.get("type", "default")) for section in given]
    asked = [kind for kind in kinds if kind not in ("default", None)]
    if asked:
        yield Finding("rope-scaling", f"rope type {asked[0]!r}", "rope_scaling")
    elif spec.rope.scaling != "none":
        yield Finding(
            "rope-scaling-target",
            f"the target uses {spec.rope.scaling}, the drafter none",
            "rope_scaling",
        )


def _block(files: BlockFiles) -> Iterator[Finding]:
    """Block size, layout and every place that states a number of drafts must agree."""
    size = _whole(files.fields, "block_size")
    first = files.fields.get("sample_from_anchor")
    if size is None:
        return
    fills_masks = "DFlashDraftModel" in Fields(files.fields).items("architectures")
    is_first = first if isinstance(first, bool) else not fills_masks
    drafts = size - (not is_first)
    layout = "anchor-first" if is_first else "anchor-drop"
    said = f"block_size {size} in layout {layout} gives {drafts} drafts per round"
    if drafts < 1:
        yield Finding("block-size", f"{said}, which is nothing", "block_size")
    stated = _stated_drafts(files)
    if stated is not None and stated != drafts:
        yield Finding("block-size", f"{said}, speculative_tokens says {stated}", "block_size")
    if files.record is not None and len(files.record.conditional_accept_rates) != drafts:
        recorded = len(files.record.conditional_accept_rates)
        yield Finding(
            "block-size", f"{said}, {files.record.source} has rates of {recorded}", "block_size"
        )


def _stated_drafts(files: BlockFiles) -> int | None:
    settings = files.raw.get("speculators_config")
    methods = settings.get("proposal_methods") if isinstance(settings, Mapping) else None
    if not isinstance(methods, list) or not methods or not isinstance(methods[0], Mapping):
        return None
    return _whole(methods[0], "speculative_tokens")
