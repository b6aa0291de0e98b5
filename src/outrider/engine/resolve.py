"""Config + machine + checkpoint → a plan, and a plan → an engine. The only place that decides."""

from dataclasses import dataclass
from functools import partial

import torch

from outrider.drafters.base import Drafter, DrafterSetting
from outrider.drafters.catalogue import drafter_factory
from outrider.engine.commit import StopRules
from outrider.engine.config import EngineConfig
from outrider.engine.engine import Engine, EngineParts
from outrider.errors import ConfigError
from outrider.kvcache.blocks import BlockAllocator
from outrider.models.checkpoint import Checkpoint, open_checkpoint
from outrider.models.decoder import Decoder
from outrider.schedule.admission import Limits
from outrider.schedule.lengths import Fixed, LengthPolicy, Off
from outrider.target.torch_target import TorchTarget
from outrider.verify.verifier import RuleVerifier

COMFORTABLE_REQUEST = 1024
LARGEST_DEFAULT_CACHE = 32768


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What this machine and this checkpoint make of a config; made only by `resolve`."""

    config: EngineConfig
    checkpoint: Checkpoint
    dtype: torch.dtype
    num_kv_blocks: int
    max_context_len: int


def resolve(config: EngineConfig, checkpoint: Checkpoint | None = None) -> EnginePlan:
    """Open the checkpoint, unless it is given, and fix what the config left open.

    Raises:
        ModelError: The checkpoint cannot be used.
        ConfigError: The config asks for something this machine or checkpoint does not have.
    """
    checkpoint = checkpoint or open_checkpoint(config.model)
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
    return EnginePlan(
        config=config,
        checkpoint=checkpoint,
        dtype=getattr(torch, config.dtype),
        num_kv_blocks=num_blocks,
        max_context_len=context,
    )


def load_decoder(plan: EnginePlan, checkpoint: Checkpoint | None = None) -> Decoder:
    """Load the weights of the target, or of another checkpoint in the target's dtype."""
    if plan.config.threads is not None:
        torch.set_num_threads(plan.config.threads)
    return (checkpoint or plan.checkpoint).load_decoder(plan.dtype)


def new_target(plan: EnginePlan, decoder: Decoder, num_kv_blocks: int) -> TorchTarget:
    """Put a KV pool beside loaded weights; the weights may be in use elsewhere."""
    return TorchTarget(
        decoder,
        num_blocks=num_kv_blocks,
        block_size=plan.config.block_size,
        device=plan.config.device,
    )


def build(plan: EnginePlan, decoder: Decoder) -> Engine:
    """Put the engine together around loaded weights."""
    config, spec = plan.config, plan.checkpoint.spec
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    return Engine(
        EngineParts(
            target=new_target(plan, decoder, plan.num_kv_blocks),
            drafter=_drafter(plan),
            lengths=_lengths(config),
            verifier=RuleVerifier(config.verify_rule, spec.stop_token_ids),
            allocator=BlockAllocator(
                plan.num_kv_blocks, config.block_size, prefix_caching=config.prefix_caching
            ),
            limits=Limits(config.max_num_seqs, config.max_num_batched_tokens, plan.max_context_len),
            rules=StopRules(spec.stop_token_ids, plan.max_context_len),
            decoder=plan.checkpoint.tokenizer,
            is_checked=config.is_checked,
        )
    )


def _load(plan: EnginePlan, checkpoint: Checkpoint) -> TorchTarget:
    """Load weights and reserve a KV pool of the plan's size for them."""
    return new_target(plan, load_decoder(plan, checkpoint), plan.num_kv_blocks)


def _drafter(plan: EnginePlan) -> Drafter | None:
    speculative = plan.config.speculative
    if speculative is None:
        return None
    return drafter_factory(speculative.method)(
        DrafterSetting(
            options=speculative,
            checkpoint=plan.checkpoint,
            load=partial(_load, plan),
            num_kv_blocks=plan.num_kv_blocks,
            block_size=plan.config.block_size,
        )
    )


def _lengths(config: EngineConfig) -> LengthPolicy:
    return Off() if config.length_policy == "off" else Fixed(_NO_BOUND)


_NO_BOUND = 1 << 30


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ConfigError(f"device {device!r} is none that torch knows") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {device!r} needs a GPU, but torch finds none here; use 'cpu'")
