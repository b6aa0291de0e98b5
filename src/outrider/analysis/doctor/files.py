"""What lies on the disk of a block drafter, read without judging it, and its record.

Loading for use stops at the first thing that is wrong. Here everything readable is read, so that
every fault can be named.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from outrider.drafters.block.checkpoint import CONFIG_FILE, WEIGHTS_FILE, read_tensors
from outrider.errors import CorruptCheckpoint, ModelError
from outrider.models.fields import Fields, read_json
from outrider.models.spec import ModelSpec

OWN: Final = "outrider"
DEEPSPEC: Final = "DeepSpec"
ZLAB: Final = "z-lab"
SPECULATORS: Final = "speculators"
PROVENANCE_FILE: Final = "provenance.json"
EMBEDDING: Final = "embed_tokens.weight"
HEAD: Final = "lm_head.weight"
NOT_THE_NETWORKS: Final = frozenset(
    {EMBEDDING, HEAD, "d2t", "t2d", "verifier_lm_head.weight", "verifier_norm.weight"}
)

Flatten = Callable[[Mapping[str, Any], int, ModelSpec], dict[str, Any]]
"""From a speculator's config, the columns of its `fc.weight` and the target to a flat config."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a checkpoint's own record says is accepted, drafted greedily.

    `conditional_accept_rates[i]` is of draft position i, None where the record has none.
    """

    source: str
    mean_accept_length: float | None
    conditional_accept_rates: tuple[float | None, ...]

    def record(self) -> dict[str, Any]:
        """Give it for JSON."""
        return {
            "source": self.source,
            "mean_accept_length": self.mean_accept_length,
            "conditional_accept_rates": list(self.conditional_accept_rates),
        }


@dataclass(frozen=True, slots=True, eq=False)
class BlockFiles:
    """A block drafter's directory.

    `fields` is its configuration under the names of our own `config.json`, `raw` as it is written.
    `tensors` are all that are stored, those of the target and the vocabulary included.
    """

    directory: Path
    schema: str
    raw: Mapping[str, Any]
    fields: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    record: Expectation | None

    @property
    def is_foreign(self) -> bool:
        """Whether the engine does not load the files as they are."""
        return self.schema == SPECULATORS

    @property
    def network_tensors(self) -> dict[str, Tensor]:
        """Tensors of the network itself."""
        return {n: t for n, t in self.tensors.items() if n not in NOT_THE_NETWORKS}


def read_block(directory: Path, target: ModelSpec, flatten: Flatten) -> BlockFiles:
    """Read everything that lies in `directory`.

    Raises:
        ModelError: A file is absent or cannot be read at all.
    """
    raw = read_json(directory / CONFIG_FILE)
    tensors = read_tensors(directory / WEIGHTS_FILE, own_only=False)
    schema = schema_of(raw, repeats_target=EMBEDDING in tensors)
    fields: Mapping[str, Any] = raw
    nested = raw.get("dflash_config")
    if schema == SPECULATORS:
        fused = tensors.get("fc.weight")
        try:
            fields = flatten(raw, 0 if fused is None or not fused.ndim else fused.shape[-1], target)
        except (TypeError, KeyError, AttributeError) as error:
            raise CorruptCheckpoint(
                f"{directory / CONFIG_FILE} has a setting of the wrong type ({error}); "
                "download it again"
            ) from error
    elif isinstance(nested, Mapping):
        fields = {**raw, **nested}
    return BlockFiles(directory, schema, raw, fields, tensors, provenance_record(directory))


def schema_of(raw: Mapping[str, Any], *, repeats_target: bool) -> str:
    """Name the project whose schema a block drafter's configuration follows."""
    if "speculators_model_type" in raw:
        return SPECULATORS
    if "dflash_config" in raw or "DFlashDraftModel" in Fields(raw).items("architectures"):
        return ZLAB
    return DEEPSPEC if repeats_target else OWN


def is_block_config(raw: Mapping[str, Any]) -> bool:
    """Whether a `config.json` describes a block drafter rather than a whole model."""
    return "speculators_model_type" in raw or any(
        name in raw for name in ("block_size", "target_layer_ids", "dflash_config")
    )


def provenance_record(directory: Path) -> Expectation | None:
    """Read what training measured on held-out text; None where nothing of use is recorded."""
    try:
        results = read_json(directory / PROVENANCE_FILE).get("results")
    except ModelError:
        return None
    return _expectation(results, PROVENANCE_FILE) if isinstance(results, Mapping) else None


def eval_record(path: Path) -> Expectation | None:
    """Read what `outrider eval` measured; None where nothing of use is recorded."""
    try:
        record = read_json(path)
    except ModelError:
        return None
    return _expectation(record, path.name)


def _expectation(values: Mapping[str, Any], source: str) -> Expectation | None:
    rates = values.get("conditional_accept_rates")
    length = values.get("mean_accept_length")
    if not isinstance(rates, list) or not rates or not all(map(_is_rate, rates)):
        return None
    known = length if isinstance(length, (int, float)) else None
    return Expectation(source, known, tuple(rates))


def _is_rate(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and 0 <= value <= 1)
