"""Config + machine + checkpoint → a plan, and a plan → an engine. The only place that decides."""

import logging
from dataclasses import dataclass, replace
from functools import partial

import torch

from outrider.core.trace import TraceHeader
from outrider.drafters.base import Drafter, DrafterSetting
from outrider.drafters.catalogue import drafter_factory
from outrider.drafters.shipped import without_auto
from outrider.engine.backend import Backend, LoadedModel, ScoringTarget, TorchBackend
from outrider.engine.commit import StopRules
from outrider.engine.config import (
    DEFAULT_WEIGHTS,
    WEIGHING_POLICIES,
    EngineConfig,
    LengthPolicyName,
)
from outrider.engine.engine import Engine, EngineParts
from outrider.engine.features import FeatureRecorder
from outrider.engine.grammar import GrammarCompiler
from outrider.engine.machine import available_cores
from outrider.engine.reader import TextReader
from outrider.engine.scheduling import Scheduling, Surroundings, scheduling
from outrider.engine.surroundings import surroundings
from outrider.engine.trace_file import TraceWriter
from outrider.errors import ConfigError
from outrider.kvcache.blocks import BlockAllocator
from outrider.models.checkpoint import Checkpoint, open_checkpoint
from outrider.native import availability
from outrider.schedule.admission import Limits
from outrider.verify.verifier import RuleVerifier

logger = logging.getLogger(__name__)

DEFAULT_DTYPE = "bfloat16"
NATIVE_BLOCK = 16
WEIGHING_BACKENDS = ("native",)
"""Where `auto` weighs drafts by measured step costs: there it was not slower than plain decoding at
any load."""
COMFORTABLE_REQUEST = 1024
LARGEST_DEFAULT_CACHE = 32768


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What this machine and this checkpoint make of a config; made only by `resolve`."""

    config: EngineConfig
    checkpoint: Checkpoint
    backend: Backend
    num_kv_blocks: int
    max_context_len: int
    grammars: GrammarCompiler


def resolve(
    config: EngineConfig,
    checkpoint: Checkpoint | None = None,
    backend: Backend | None = None,
    grammars: GrammarCompiler | None = None,
) -> EnginePlan:
    """Open the checkpoint, choose the backend, unless given, and fix what the config left open.

    `grammars` are those of another engine for the same checkpoint.

    Raises:
        ModelError: The checkpoint cannot be used.
        ConfigError: The config asks for something this machine or checkpoint does not have.
    """
    checkpoint = checkpoint or open_checkpoint(config.model)
    config = replace(config, speculative=without_auto(config.speculative, checkpoint))
    spec = checkpoint.spec
    _check_device(config.device)
    context = config.max_context_len or spec.max_context_len
    if context > spec.max_context_len:
        raise ConfigError(
            f"max_context_len is {context}, but {config.model} was made for "
            f"{spec.max_context_len} tokens"
        )
    wanted = config.kv_cache_tokens
    if wanted is None:
        full_load = max(config.max_num_seqs * COMFORTABLE_REQUEST, context)
        wanted = min(full_load, LARGEST_DEFAULT_CACHE)
        context = min(context, wanted)
    num_blocks = -(-wanted // config.block_size)
    _check_taps(config, spec.num_layers)
    backend = backend or choose_backend(config)
    return EnginePlan(
        config=replace(config, length_policy=_length_policy(config, backend)),
        checkpoint=checkpoint,
        backend=backend,
        num_kv_blocks=num_blocks,
        max_context_len=context,
        grammars=grammars
        or GrammarCompiler(checkpoint.tokenizer, spec.vocab_size, spec.stop_token_ids),
    )


def _length_policy(config: EngineConfig, backend: Backend) -> LengthPolicyName:
    if config.length_policy != "auto":
        return config.length_policy
    return "throughput" if backend.name in WEIGHING_BACKENDS else "fixed"


def build(plan: EnginePlan, model: LoadedModel, drafter: Drafter | None = None) -> Engine:
    """Put the engine together around loaded weights; `drafter` stands in for the config's.

    Raises:
        ConfigError: The KV cache does not fit into memory, or the drafter cannot be used.
        ModelError: The drafter's checkpoint cannot be used.
    """
    config, spec = plan.config, plan.checkpoint.spec
    target = _target(plan, model)
    drafter = drafter or _drafter(plan, model)
    decided = _scheduling(plan, model, drafter)
    return Engine(
        EngineParts(
            target=target,
            drafter=drafter,
            lengths=decided.lengths,
            verifier=RuleVerifier(config.verify_rule, spec.stop_token_ids, target.sampler),
            allocator=BlockAllocator(
                plan.num_kv_blocks, config.block_size, prefix_caching=config.prefix_caching
            ),
            limits=Limits(config.max_num_seqs, config.max_num_batched_tokens, plan.max_context_len),
            rules=StopRules(spec.stop_token_ids, plan.max_context_len),
            decoder=plan.checkpoint.tokenizer,
            reader=TextReader(plan.checkpoint.tokenizer),
            grammars=plan.grammars,
            recorder=FeatureRecorder(config.feature_taps) if config.feature_taps else None,
            is_checked=config.is_checked,
            cost=decided.cost,
            estimator=decided.estimator,
            on_step=_tracer(plan, drafter),
        )
    )


def _target(plan: EnginePlan, model: LoadedModel) -> ScoringTarget:
    block_size = plan.config.block_size
    try:
        return model.new_target(plan.num_kv_blocks, block_size)
    except (RuntimeError, MemoryError) as error:  # Torch says it with the first.
        raise ConfigError(
            f"a KV cache of {plan.num_kv_blocks * block_size} tokens does not fit into memory; "
            "lower kv_cache_tokens"
        ) from error


def _tracer(plan: EnginePlan, drafter: Drafter | None) -> TraceWriter | None:
    config = plan.config
    if config.trace is None:
        return None
    return TraceWriter(
        config.trace,
        TraceHeader(
            model=config.model,
            backend=plan.backend.name,
            drafter=None if config.speculative is None else config.speculative.method,
            max_draft_len=0 if drafter is None else drafter.max_draft_len,
            verify_rule=config.verify_rule,
            length_policy=config.length_policy,
        ),
    )


def _check_taps(config: EngineConfig, num_layers: int) -> None:
    if config.feature_taps and config.prefix_caching:
        raise ConfigError(
            "feature_taps wants every position computed, but prefix_caching skips those found in "
            "the cache; add prefix_caching=False"
        )
    for tap in config.feature_taps:
        if not -1 <= tap < num_layers:
            raise ConfigError(
                f"tap {tap} is no layer of {config.model}: it has {num_layers}, numbered from 0 "
                f"to {num_layers - 1}; -1 is the embedding"
            )


def _load(plan: EnginePlan, checkpoint: Checkpoint) -> ScoringTarget:
    """Load another checkpoint, with a KV pool of the plan's size."""
    return plan.backend.load(checkpoint).new_target(plan.num_kv_blocks, plan.config.block_size)


def _drafter(plan: EnginePlan, model: LoadedModel) -> Drafter | None:
    speculative = plan.config.speculative
    if speculative is None:
        return None
    return drafter_factory(speculative.method)(
        DrafterSetting(
            options=speculative,
            checkpoint=plan.checkpoint,
            load=partial(_load, plan),
            load_block=partial(
                model.new_block_runner,
                num_blocks=plan.num_kv_blocks,
                block_size=plan.config.block_size,
            ),
            num_kv_blocks=plan.num_kv_blocks,
            block_size=plan.config.block_size,
        )
    )


def _scheduling(plan: EnginePlan, model: LoadedModel, drafter: Drafter | None) -> Scheduling:
    around = None
    if drafter is not None and plan.config.length_policy in WEIGHING_POLICIES:
        around = surroundings(
            plan.config, plan.checkpoint, plan.backend, model, drafter, plan.max_context_len
        )
    return scheduling(plan.config, around)


def surroundings_of(plan: EnginePlan, model: LoadedModel) -> Surroundings:
    """Say what the step costs of this plan's engine depend on, and how to measure them.

    Raises:
        ConfigError: The plan drafts nothing.
    """
    drafter = _drafter(plan, model)
    if drafter is None:
        raise ConfigError("step costs are for an engine that drafts; name a drafter")
    return surroundings(
        plan.config, plan.checkpoint, plan.backend, model, drafter, plan.max_context_len
    )


def choose_backend(config: EngineConfig) -> Backend:
    """Decide what computes; `auto` prefers the native runner where it can do what is asked.

    Raises:
        ConfigError: The backend that was asked for cannot run here or with the other options.
    """
    wants_torch = config.dtype is not None or torch.device(config.device).type != "cpu"
    if config.backend == "native" and wants_torch:
        raise ConfigError(
            "the native backend computes on the CPU in a precision of its own; leave dtype and "
            "device out, or use backend 'torch'"
        )
    fault = availability.fault()
    if config.backend == "native" and fault is not None:
        raise ConfigError(fault)
    if config.backend == "torch" or wants_torch or fault is not None:
        if config.weights != DEFAULT_WEIGHTS:
            raise ConfigError(
                f"weights {config.weights!r} are made by the native backend, but torch computes "
                "here; leave weights, dtype and device out, or use backend 'native'"
            )
        if config.backend == "auto" and not wants_torch:
            logger.warning("%s; running on torch instead", fault)
        return TorchBackend(config.dtype or DEFAULT_DTYPE, config.device, config.threads)
    if config.block_size % NATIVE_BLOCK:
        raise ConfigError(
            f"block_size is {config.block_size}, but the native backend needs a multiple of "
            f"{NATIVE_BLOCK}; or use backend 'torch'"
        )
    # The extension is optional, so nothing that needs it is imported before it was found.
    from outrider.engine.native_backend import NativeBackend

    return NativeBackend.start(config.threads or available_cores(), config.weights)


def _check_device(device: str) -> None:
    """Try the device with one number."""
    try:
        found = torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {device!r} cannot be used here ({reason}); try 'cpu'") from error
    if found.is_meta:
        raise ConfigError("device 'meta' computes nothing; try 'cpu'")
