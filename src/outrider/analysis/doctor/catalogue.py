"""Every finding the doctor can make: how bad it is, what it means, what to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Severity = Literal["error", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Kind:
    """What all findings of one id have in common."""

    severity: Severity
    meaning: str
    remedy: str


def _error(meaning: str, remedy: str) -> Kind:
    return Kind("error", meaning, remedy)


def _warning(meaning: str, remedy: str) -> Kind:
    return Kind("warning", meaning, remedy)


def _info(meaning: str, remedy: str) -> Kind:
    return Kind("info", meaning, remedy)


_RETRAIN = "train a drafter for this target, or use the target it was trained for"
_FETCH = "download or convert the drafter again"
_FIX_CONFIG = "correct the drafter's config.json, then run the doctor again"

_FILES: Final = {
    "drafter-unreadable": _error("a file of the drafter cannot be read", _FETCH),
    "drafter-refused": _error(
        "the engine refuses the drafter, for a reason no other finding names", _FIX_CONFIG
    ),
    "config-field": _error(
        "config.json lacks a setting, or has one of the wrong type or range", _FIX_CONFIG
    ),
    "schema-foreign": _info(
        "the files are in another project's schema, which the engine does not load as it is",
        "outrider export DRAFTER --to outrider --output DIR",
    ),
    "record-missing": _info(
        "nothing says what acceptance to expect, so only its absence can be noticed",
        "keep provenance.json beside the weights, or eval.json in a shipped folder",
    ),
}

_TARGET: Final = {
    "target-hash": _error(
        "the drafter was trained for other weights: their features and its guesses do not match",
        _RETRAIN,
    ),
    "target-hash-unknown": _info(
        "the drafter does not say which weights it was trained for",
        "make sure yourself that it is this target, the same fine-tune and the same quantisation",
    ),
    "target-architecture": _warning("the drafter names a target of another architecture", _RETRAIN),
    "hidden-size": _error("the target's features are wider or narrower than it reads", _RETRAIN),
    "vocab-size": _error("its token ids are not the target's", _RETRAIN),
    "target-layers": _error(
        "it was trained for a target of another depth, so its taps lie elsewhere", _RETRAIN
    ),
    "norm-eps": _info(
        "its norms use another epsilon than the target's", "nothing, if it was trained so"
    ),
    "tokenizer-differs": _error(
        "a token id stands for different text in target and drafter, so it drafts nonsense",
        "use a drafter of the same family, whose tokenizer is the target's",
    ),
    "tokenizer-larger": _error(
        "the tokenizer has ids for which the model has no row; such a token fails the request",
        "use the tokenizer that belongs to the checkpoint",
    ),
    "vocab-padding": _info(
        "the model has more rows than the tokenizer has ids; they are padding", "nothing"
    ),
}

_NETWORK: Final = {
    "tap-outside": _error(
        "a tapped layer does not exist; layers are counted from 0 and -1 is the embedding",
        "write the 0-based index of the layer whose output was used in training; ids of vLLM "
        "and speculators count what enters a layer and are one more",
    ),
    "tap-order": _warning(
        "tapped layers are named twice or not in rising order, which `fc` may not have been "
        "trained with",
        "compare target_layer_ids with the training configuration",
    ),
    "tap-last-layer": _info(
        "the last layer is tapped: this engine gives its output before the final norm",
        "make sure that training did so too; transformers' hidden_states[-1] is after the norm",
    ),
    "sliding-window": _error(
        "the drafter was trained with sliding-window attention, which is computed as full "
        "attention here",
        "train with full attention",
    ),
    "mask-outside": _error(
        "the mask token has no embedding, so no block can be made",
        "write the mask_token_id of the training configuration",
    ),
    "mask-is-text": _warning(
        "the mask token is ordinary text: slots look as if that text stood there",
        "compare mask_token_id with the training configuration; it should be a special or an "
        "unused id",
    ),
    "rope-theta": _warning(
        "drafter and target turn positions into angles with different bases",
        "compare rope_theta with the training configuration; a base that got lost in "
        "conversion costs acceptance that grows with the position",
    ),
    "rope-scaling": _error(
        "the drafter asks for rope scaling, which block drafters are computed without",
        "remove it if it was trained without, or train without",
    ),
    "rope-scaling-target": _info(
        "the target scales its rotary positions, the drafter does not",
        "nothing, if it was trained so; acceptance may fall on long contexts",
    ),
    "context-short": _warning(
        "beyond the drafter's longest context requests go on without drafts",
        "raise max_position_embeddings if it was trained for more, or keep requests shorter",
    ),
    "block-size": _error(
        "block size, layout and number of draft tokens contradict each other or the record",
        "compare block_size and sample_from_anchor with the training configuration",
    ),
    "draft-len": _error(
        "more draft tokens are asked for than a block holds",
        "ask for fewer with --draft-len or num_speculative_tokens",
    ),
    "confidence-missing": _error(
        "the configuration promises a confidence head whose tensors are absent",
        "convert again, or set enable_confidence_head to false",
    ),
    "confidence-none": _info(
        "there is no confidence head: the length policies cannot tell good drafts from bad ones",
        "use length policy fixed, or train with a confidence head",
    ),
}

_TENSORS: Final = {
    "tensor-missing": _error("a tensor of the network is absent", _FETCH),
    "tensor-unexpected": _error(
        "a tensor belongs to no part of the network the configuration describes",
        "compare config.json with the training configuration: a head that is turned off, or "
        "another number of layers",
    ),
    "tensor-shape": _error("a tensor has another shape than the configuration gives", _FIX_CONFIG),
    "tensor-dtype": _error("a tensor does not hold floating-point numbers", _FETCH),
    "tensor-not-finite": _error("a tensor holds NaN or infinities", "use an earlier checkpoint"),
    "tensor-zero": _error("a matrix is all zeros: its part does nothing", _FETCH),
    "tensor-duplicate": _error(
        "two matrices that training makes different are the same to the bit", _FETCH
    ),
    "tensor-random": _error(
        "a matrix has the spectrum and the distribution of fresh random numbers: it was never "
        "trained, or was not found when the drafter was converted",
        _FETCH,
    ),
    "norm-untrained": _warning(
        "all weights of a norm are the same number, as they are before training",
        "check that the norm was trained and converted",
    ),
}

_VOCABULARY: Final = {
    "d2t-missing": _error(
        "the draft vocabulary is reduced, but nothing says which tokens it holds",
        "convert again and keep the tensor d2t",
    ),
    "d2t-invalid": _error(
        "d2t does not name the right number of different tokens of the target", _FETCH
    ),
    "d2t-absolute": _error(
        "d2t holds token ids where it must hold offsets (target id minus draft id)",
        "subtract 0, 1, 2, … from it",
    ),
    "t2d-inconsistent": _error(
        "d2t and t2d name different tokens; one of them is damaged or shifted", _FETCH
    ),
    "head-differs": _error(
        "the output matrix in the file is not the target's: it is random, of another model, or "
        "trained apart; this engine uses the target's",
        "convert again, with the head of this target",
    ),
    "head-tied": _error(
        "the file's output matrix is the embedding, but this target has one of its own",
        "convert again with tie_word_embeddings false and the target's lm_head",
    ),
    "embedding-differs": _error(
        "the embedding in the file is not the target's; this engine uses the target's", _RETRAIN
    ),
}

_PARTS: Final = {
    "table-unreadable": _error("the n-gram table cannot be read", "build it again"),
    "table-tokenizer": _error(
        "the n-gram table holds ids of another tokenizer", "build one from this target's own text"
    ),
    "draft-not-smaller": _warning(
        "the draft model is not much smaller than the target, so drafting cannot pay",
        "use a smaller model of the same family",
    ),
}

_MACHINE: Final = {
    "native-missing": _warning(
        "the native runner is not there; torch computes, many times slower on a CPU",
        "install a C++ compiler and install again",
    ),
    "threads": _warning(
        "more threads are asked for than there are cores", "leave --threads out, or lower it"
    ),
    "instruction-set": _info(
        "only portable code runs here: the processor or the build has no vector instructions",
        "build on this machine with GCC or Clang",
    ),
    "memory-total": _error(
        "weights and caches need more memory than this machine has",
        "use a smaller quantisation, or lower kv_cache_tokens",
    ),
    "memory-free": _warning(
        "weights and caches need more memory than is free now",
        "end other programs, or lower kv_cache_tokens",
    ),
}

_SELF_TEST: Final = {
    "taps-shifted": _error(
        "it drafts better from the neighbouring layers: the tap ids follow another convention",
        "add the shift named to target_layer_ids; here an id means the output of a layer, counted "
        "from 0",
    ),
    "layout-wrong": _error(
        "it drafts better in the other block layout", "flip sample_from_anchor in config.json"
    ),
    "markov-swapped": _error(
        "the two matrices of the Markov head are exchanged",
        "exchange markov_w1 (indexed by target ids) and markov_w2 (draft ids)",
    ),
    "markov-harmful": _error(
        "it drafts better without its Markov head, which is random or belongs to another drafter",
        _FETCH,
    ),
    "draft-vocab-shifted": _error(
        "it drafts better with every entry of the draft vocabulary moved by one",
        "repair d2t: draft id i stands for target id i + d2t[i]",
    ),
    "rope-theta-wrong": _error(
        "it drafts better with the target's rope_theta", "write that into config.json"
    ),
    "acceptance-low": _error(
        "much less is accepted than the drafter's record says",
        "look at the other findings; if there are none, the text is unlike what it was trained on "
        "(try --prompts) or weights and configuration do not belong together",
    ),
    "position-collapse": _error(
        "acceptance falls apart at a draft position where the record has good rates",
        "look at the Markov head, the mask token and the rope settings",
    ),
    "drafts-nothing": _error(
        "practically nothing that is drafted is accepted",
        "look at the other findings; else weights and configuration do not belong together",
    ),
    "confidence-off": _warning(
        "the confidences have nothing to do with what is accepted",
        "run `outrider calibrate`, or use length policy fixed",
    ),
    "output-differs": _error(
        "speculative and plain output differ, which no drafter may cause",
        "report it, with the output of `outrider certify`",
    ),
    "self-test-failed": _error("the self-test could not be finished", "see the reason named"),
    "self-test-skipped": _info(
        "the drafter cannot be run as it is, so what it drafts was not looked at",
        "repair the errors above first",
    ),
    "self-test-short": _info(
        "too few tokens were compared to judge acceptance", "raise --max-tokens or use --prompts"
    ),
}

KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    _FILES | _TARGET | _NETWORK | _TENSORS | _VOCABULARY | _PARTS | _MACHINE | _SELF_TEST
)
