"""What a generation will take, measured on its own first prompts before it starts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.request import SamplingParams
from outrider.engine.llm import LLM
from outrider.tensor.window import Taps
from outrider.training.generate import GeneratePlan, planned_documents
from outrider.training.settings import FeatureMode

_WARM_UP_TOKENS = 12
_BYTES_PER_TOKEN = 5
"""An id of four bytes and a mask of one."""
_BYTES_PER_FEATURE = 2
_SPARE_SHARE = 0.9
_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens per second of reading prompts, and of writing answers to `concurrency` at a time."""

    prompt: float
    answer: float
    concurrency: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Upper bounds: every answer is taken to be as long as it may be. Seconds and bytes.

    `feature_bytes` is what captured features take or would take; `recompute_seconds` what one pass
    over the data costs a training that computes them itself.
    """

    num_documents: int
    num_prompt_tokens: int
    num_answer_tokens: int
    speeds: Speeds
    seconds: float
    token_bytes: int
    feature_bytes: int
    recompute_seconds: float
    free_bytes: int
    mode: FeatureMode

    @property
    def disk_bytes(self) -> int:
        """What the run will write at most."""
        return self.token_bytes + (self.feature_bytes if self.mode == "capture" else 0)

    @property
    def fits(self) -> bool:
        """Whether the disk has room for that."""
        return self.disk_bytes <= self.free_bytes

    @property
    def is_capture_cheaper(self) -> bool:
        """Captured features cost no forward at all, so only the disk can speak against them."""
        return self.token_bytes + self.feature_bytes <= _SPARE_SHARE * self.free_bytes

    def lines(self) -> list[str]:
        """Say it in words."""
        speeds = self.speeds
        lines = [
            f"to do      {self.num_documents} documents, about {self.num_prompt_tokens} prompt "
            f"tokens and at most {self.num_answer_tokens} answer tokens",
            f"speed      {speeds.prompt:.0f} prompt and {speeds.answer:.0f} answer tokens/s, "
            f"{speeds.concurrency} at a time (measured)",
            f"time       at most {_minutes(self.seconds)}",
            f"disk       at most {self.disk_bytes / _GIGA:.2f} GB, "
            f"{self.free_bytes / _GIGA:.1f} GB free",
        ]
        if self.mode != "none":
            lines.append(
                f"features   captured {self.feature_bytes / _GIGA:.2f} GB once; recomputed "
                f"{_minutes(self.recompute_seconds)} in every pass of training; cheaper: "
                + ("captured" if self.is_capture_cheaper else "recomputed, the disk is too small")
            )
        if not self.fits:
            lines.append(
                "warning    the disk may be too small; finished shards stay, or use "
                "--features recompute"
            )
        return lines


def measure_speeds(llm: LLM, prompts: Sequence[Sequence[int]]) -> Speeds:
    """Read and continue the first prompts, as many at a time as the engine takes."""
    shown = [list(prompt) for prompt in prompts[: llm.config.max_num_seqs]]
    llm.generate(shown[:1], _params(1))  # Buffers are made on first use.
    reading = _seconds(llm, shown, 1)
    writing = _seconds(llm, shown, 1 + _WARM_UP_TOKENS) - reading
    return Speeds(
        prompt=sum(map(len, shown)) / reading,
        answer=len(shown) * _WARM_UP_TOKENS / max(writing, reading * 1e-3),
        concurrency=len(shown),
    )


def estimate(
    llm: LLM,
    plan: GeneratePlan,
    pending: Sequence[int],
    max_tokens: int,
    *,
    taps: Taps,
    mode: FeatureMode,
    free_bytes: int,
) -> Estimate:
    """Measure the speeds and scale them to the shards that are `pending`, at least one."""
    documents = planned_documents(plan, pending)
    speeds = measure_speeds(llm, [tokens for tokens, _ in documents])
    prompt = sum(_tokens_read(len(tokens), turns, max_tokens) for tokens, turns in documents)
    answer = sum(turns * max_tokens for _, turns in documents)
    written = sum(len(tokens) for tokens, _ in documents) + answer
    return Estimate(
        num_documents=len(documents),
        num_prompt_tokens=prompt,
        num_answer_tokens=answer,
        speeds=speeds,
        seconds=prompt / speeds.prompt + answer / speeds.answer,
        token_bytes=written * _BYTES_PER_TOKEN,
        feature_bytes=written * _BYTES_PER_FEATURE * len(taps) * llm.spec.hidden_size,
        recompute_seconds=written / speeds.prompt,
        free_bytes=free_bytes,
        mode=mode,
    )


def _tokens_read(length: int, turns: int, max_tokens: int) -> int:
    """Each turn reads everything before it again, because no features are cached."""
    return sum(length + turn * max_tokens for turn in range(turns))


def _seconds(llm: LLM, prompts: Sequence[list[int]], num_tokens: int) -> float:
    started = time.perf_counter()
    llm.generate(prompts, _params(num_tokens))
    return time.perf_counter() - started


def _params(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)


def _minutes(seconds: float) -> str:
    hours, minutes = divmod(seconds / 60, 60)
    return f"{hours:.0f} h {minutes:.0f} min" if hours else f"{minutes:.1f} min"
