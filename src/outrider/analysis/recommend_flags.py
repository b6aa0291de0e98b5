"""A recommendation as options of this engine and of others.

The others' option names are those of their documentation at the versions in `VERSIONS`. vLLM and
TensorRT-LLM take a length by number of requests, the others one length. A drafter that one does not
have is said to be missing; `suffix` becomes n-gram lookup where that is the nearest.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from outrider.analysis.recommend import FIXED, NO_DRAFTS, OFF, THROUGHPUT, Recommendation
from outrider.drafters.config import SpeculativeConfig

VERSIONS: Final = {
    "vllm": "0.32",
    "sglang": "documentation of August 2026",
    "tensorrt-llm": "1.4",
    "llama.cpp": "llama-server whose options begin with --spec- (2026)",
}
_MODEL: Final = "DRAFT_MODEL"
_NETWORKS: Final = ("dflash", "dspark")
_SGLANG: Final = {"dflash": "DFLASH", "dspark": "DSPARK"}
_TENSORRT: Final = {
    "ngram": "NGram",
    "suffix": "SA",
    "draft-model": "Draft_Target",
    "dflash": "DFlash",
    "dspark": "DSpark",
}


def flags(found: Recommendation, cost_table: str) -> dict[str, str]:
    """Give, by engine, what to put on the command line (or, for TensorRT-LLM, into its YAML)."""
    config = _config(found)
    return {
        "outrider": _outrider(found, config, cost_table),
        "vllm": _vllm(found, config),
        "sglang": _sglang(found, config),
        "tensorrt-llm": _tensorrt(found, config),
        "llama.cpp": _llama(found, config),
    }


def _config(found: Recommendation) -> dict[str, Any]:
    """The drafter's options, without those that are as they are by default."""
    drafter = found.choice.drafter or found.evidence.drafter
    given = dict(found.evidence.config or {"method": drafter})
    usual = SpeculativeConfig.__dataclass_fields__
    return {
        name: value
        for name, value in given.items()
        if name == "method" or (name in usual and value != usual[name].default)
    }


def _outrider(found: Recommendation, config: Mapping[str, Any], cost_table: str) -> str:
    choice, limit = found.choice, found.limit
    seats = "" if limit is None else f" --max-num-seqs {limit}"
    if choice.policy == OFF:
        return "--draft off" + seats
    length = choice.length
    if set(config) - {"method", "num_speculative_tokens"}:
        options = json.dumps({**config, "num_speculative_tokens": length})
        drafter = f"--speculative-config {shlex.quote(options)}"
    else:
        # The combined drafter is what `auto` finds for a target that one is shipped for.
        method = "auto" if config["method"] == "combined" else config["method"]
        drafter = f"--draft {method} --draft-len {length}"
    policy = f" --length-policy {choice.policy}"
    if choice.policy == THROUGHPUT:
        policy += f" --cost-table {shlex.quote(cost_table)}"
    return drafter + policy + seats


def _steps(found: Recommendation) -> list[tuple[int, int, int]]:
    """First and last number of requests, and the draft length between."""
    if found.choice.policy == FIXED:
        pairs = [(found.by_load[-1].concurrency, found.choice.length)]
    else:
        pairs = list(found.schedule)
    merged: list[tuple[int, int]] = []
    for load, length in pairs:
        if merged and merged[-1][1] == length:
            merged.pop()
        merged.append((load, length))
    starts = [1, *(load + 1 for load, _ in merged)]
    return [(start, load, length) for start, (load, length) in zip(starts, merged, strict=False)]


def _longest(steps: Sequence[tuple[int, int, int]]) -> int:
    return max(length for _, _, length in steps)


def _single(found: Recommendation) -> int:
    """Length for an engine that knows one only."""
    if found.choice == NO_DRAFTS:
        return 0
    return found.choice.length if found.choice.policy == FIXED else found.single


def _is_varying(steps: Sequence[tuple[int, int, int]]) -> bool:
    return any(one[2] != other[2] for one, other in pairwise(steps))


def _seats(found: Recommendation, option: str) -> str:
    return "" if found.limit is None else f"{option} {found.limit}"


def _missing(engine: str, method: str) -> str:
    return f"# {engine} ({VERSIONS[engine]}) is not known to have a drafter like {method!r}"


def _none(found: Recommendation, option: str) -> str:
    seats = _seats(found, option)
    return f"# no speculative options{': ' + seats if seats else ''}"


def _vllm(found: Recommendation, config: Mapping[str, Any]) -> str:
    steps, method = _steps(found), config["method"]
    if found.choice == NO_DRAFTS or not _longest(steps):
        return _none(found, "--max-num-seqs")
    if method not in ("ngram", "suffix", "draft-model", *_NETWORKS):
        return _missing("vllm", method)
    options: dict[str, Any] = {"method": method.replace("-", "_")}
    if method in ("draft-model", *_NETWORKS):
        options["model"] = config.get("model", _MODEL)
    options["num_speculative_tokens"] = _longest(steps)
    for name in ("prompt_lookup_min", "prompt_lookup_max", "suffix_decoding_min_token_prob"):
        if name in config:
            options[name] = config[name]
    if _is_varying(steps):
        options["num_speculative_tokens_per_batch_size"] = [list(step) for step in steps]
    spoken = f"--speculative-config {shlex.quote(json.dumps(options))}"
    return f"{spoken} {_seats(found, '--max-num-seqs')}".rstrip()


def _sglang(found: Recommendation, config: Mapping[str, Any]) -> str:
    length, method = _single(found), config["method"]
    if not length:
        return _none(found, "--max-running-requests")
    model = shlex.quote(str(config.get("model", _MODEL)))
    if method in ("ngram", "suffix"):
        # Its draft tokens include the anchor.
        spoken = f"--speculative-algorithm NGRAM --speculative-num-draft-tokens {length + 1}"
    elif method == "draft-model":
        spoken = (
            f"--speculative-algorithm STANDALONE --speculative-draft-model-path {model} "
            f"--speculative-num-steps {length} --speculative-eagle-topk 1 "
            f"--speculative-num-draft-tokens {length + 1}"
        )
    elif method in _SGLANG:
        spoken = (
            f"--speculative-algorithm {_SGLANG[method]} --speculative-draft-model-path {model} "
            f"--speculative-num-draft-tokens {length + 1}"
        )
    else:
        return _missing("sglang", method)
    return f"{spoken} {_seats(found, '--max-running-requests')}".rstrip()


def _tensorrt(found: Recommendation, config: Mapping[str, Any]) -> str:
    steps, method = _steps(found), config["method"]
    seats = [] if found.limit is None else [f"max_batch_size: {found.limit}"]
    if found.choice == NO_DRAFTS or not _longest(steps):
        return "\n".join(["# no speculative_config", *seats])
    if method not in _TENSORRT:
        return _missing("tensorrt-llm", method)
    lines = [
        *seats,
        "speculative_config:",
        f"  decoding_type: {_TENSORRT[method]}",
        f"  max_draft_len: {_longest(steps)}",
    ]
    if method in ("draft-model", *_NETWORKS):
        lines.append(f"  speculative_model: {config.get('model', _MODEL)}")
    if _is_varying(steps):
        # Each key is the largest batch of its length; none is drafted beyond the last.
        schedule = ", ".join(f"{last}: {length}" for _, last, length in steps if length)
        lines.append(f"  draft_len_schedule: {{{schedule}}}")
    return "\n".join(lines)


def _llama(found: Recommendation, config: Mapping[str, Any]) -> str:
    length, method = _single(found), config["method"]
    if not length:
        return _none(found, "--parallel")
    if method in ("ngram", "suffix"):
        spoken = f"--spec-type ngram-simple --spec-draft-n-max {length}"
    elif method == "draft-model":
        model = shlex.quote(str(config.get("model", _MODEL)))
        spoken = f"--spec-draft-model {model} --spec-draft-n-max {length}"
    else:
        return _missing("llama.cpp", method)
    return f"{spoken} {_seats(found, '--parallel')}".rstrip()
