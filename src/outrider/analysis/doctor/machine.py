"""The machine: what computes here, and whether weights and caches fit into memory."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from outrider.analysis.doctor.findings import Finding
from outrider.drafters.block.config import BlockConfig
from outrider.engine.machine import available_cores
from outrider.models.checkpoint import Checkpoint
from outrider.models.weights import SafetensorsSource
from outrider.native.availability import fault, instruction_sets

_PORTABLE: Final = "portable"
_KIBI: Final = 1024
_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")
NATIVE_KV_BYTES: Final = 2
_KEYS_AND_VALUES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What this process has. Memory in bytes, None where the system does not tell."""

    cores: int
    instruction_sets: tuple[str, ...]
    native_fault: str | None
    free_bytes: int | None
    total_bytes: int | None

    @classmethod
    def here(cls) -> "MachineFacts":
        """Look at this machine, and at the limit of the container it may be."""
        free, total = _memory()
        sets = tuple(instruction_sets())
        return cls(
            cores=available_cores(),
            instruction_sets=sets,
            native_fault=fault(),
            free_bytes=free,
            total_bytes=total,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """How the pair is going to be computed.

    `dtype` is what torch computes in; `is_fallback`: torch stands in for the native runner.
    """

    backend: str
    dtype: str
    is_fallback: bool = False
    threads: int | None
    kv_tokens: int

    @property
    def value_bytes(self) -> int:
        """Bytes of one key or value number."""
        return NATIVE_KV_BYTES if self.backend == "native" else _BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by part."""

    parts: dict[str, int]

    @property
    def needed(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())

    def record(self) -> dict[str, Any]:
        """Give it for JSON."""
        return {"needed": self.needed, "parts": self.parts}


def model_memory(checkpoint: Checkpoint, computing: Computing, name: str) -> dict[str, int]:
    """Weights and KV cache of a model."""
    spec = checkpoint.spec
    values = _KEYS_AND_VALUES * spec.num_layers * spec.num_kv_heads * spec.head_dim
    return {
        f"{name} weights": _weights(checkpoint, computing),
        f"{name} KV cache": computing.kv_tokens * values * computing.value_bytes,
    }


def block_memory(config: BlockConfig, computing: Computing) -> dict[str, int]:
    """Network and context cache of a block drafter, whose numbers are float32 on torch."""
    size, wide, dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads = config.num_heads + config.num_kv_heads
    layer = _KEYS_AND_VALUES * size * heads * dim + 3 * size * wide
    markov = config.markov_rank * (config.vocab_size + config.head_size)
    parameters = config.num_layers * layer + len(config.target_layer_ids) * size**2 + markov
    value = NATIVE_KV_BYTES if computing.backend == "native" else _BYTES["float32"]
    context = _KEYS_AND_VALUES * config.num_layers * config.num_kv_heads * dim
    # While it is loaded, the network is there in float32 as well as quantised.
    return {
        "drafter weights": parameters * _BYTES["float32"],
        "drafter context": computing.kv_tokens * context * value,
    }


def check_machine(facts: MachineFacts, computing: Computing, memory: Memory) -> Iterator[Finding]:
    """Find what is missing here."""
    if computing.is_fallback:
        yield Finding("native-missing", facts.native_fault or "torch was chosen", "machine")
    elif computing.backend == "native" and set(facts.instruction_sets) <= {_PORTABLE}:
        yield Finding("instruction-set", f"{list(facts.instruction_sets)}", "machine")
    if computing.threads is not None and computing.threads > facts.cores:
        yield Finding("threads", f"{computing.threads} threads on {facts.cores} cores", "machine")
    need = f"{memory.needed / 1e9:.2f} GB are needed"
    if facts.total_bytes is not None and memory.needed > facts.total_bytes:
        yield Finding("memory-total", f"{need}, {facts.total_bytes / 1e9:.2f} GB are there")
    elif facts.free_bytes is not None and memory.needed > facts.free_bytes:
        yield Finding("memory-free", f"{need}, {facts.free_bytes / 1e9:.2f} GB are free")


def _weights(checkpoint: Checkpoint, computing: Computing) -> int:
    if checkpoint.gguf is not None and computing.backend == "native":
        return checkpoint.path.stat().st_size
    source = checkpoint.gguf or SafetensorsSource(checkpoint.path)
    parameters = sum(prod(shape) for shape in source.shapes().values())
    per_value = _BYTES["bfloat16"] if computing.backend == "native" else _BYTES[computing.dtype]
    return parameters * per_value


def _memory() -> tuple[int | None, int | None]:
    """Free and total bytes; a container's limit counts as the total."""
    try:
        text = Path("/proc/meminfo").read_text("utf-8")
    except OSError:
        return None, None
    found = {m[1]: int(m[2]) * _KIBI for m in re.finditer(r"^(\w+):\s+(\d+) kB", text, re.M)}
    free, total = found.get("MemAvailable"), found.get("MemTotal")
    try:
        limit = _CGROUP.read_text("utf-8").strip()
    except OSError:
        limit = "max"
    if limit.isdecimal() and total is not None:
        total = min(total, int(limit))
        free = None if free is None else min(free, total)
    return free, total
