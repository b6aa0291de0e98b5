"""What a whole draft of a block drafter costs, beside a one-row step of its target.

    python benchmarks/block_draft.py MODEL.gguf [--drafter DIR | --layers 2 --intermediate 1536 …]

One request on the native runner: features of three new positions in, a block of draft tokens with
confidences out, in turns with a target step of one row, so a machine that slows down slows both.
Medians, the median of the rounds' ratios, and the fastest tenth of each side, which a busy
machine disturbs least. Without `--drafter` the weights are random: the cost
does not depend on them. The floor is what must be read and multiplied. The last line of stdout is
one JSON object.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from outrider import LLM, SamplingParams
from outrider.analysis.environment import environment
from outrider.core.ids import BlockId, RequestId
from outrider.core.request import Request
from outrider.core.sequence import Sequence
from outrider.drafters.block.checkpoint import BlockCheckpoint, load_checkpoint
from outrider.drafters.block.config import BlockConfig
from outrider.drafters.block.runner import BlockRow, NewContext
from outrider.models.spec import ModelSpec
from outrider.tensor.span import Span
from outrider.testing.tiny_block import tiny_block, tiny_block_config

NEW_POSITIONS = 3


@dataclass(frozen=True)
class Floor:
    """Numbers of one draft: weights that are read, and multiplications."""

    fuse: int
    layers: int
    head: int
    block_size: int

    @classmethod
    def of(cls, config: BlockConfig) -> "Floor":
        size = config.hidden_size
        heads = (config.num_heads + config.num_kv_heads) * config.head_dim
        layer = size * (2 * heads + 3 * config.intermediate_size)
        return cls(
            fuse=len(config.target_layer_ids) * size * size,
            layers=config.num_layers * layer,
            head=config.head_size * size,
            block_size=config.block_size,
        )

    @property
    def weights(self) -> int:
        return self.fuse + self.layers + self.head

    @property
    def multiplications(self) -> int:
        return NEW_POSITIONS * self.fuse + self.block_size * (self.layers + self.head)


def random_drafter(spec: ModelSpec, options: argparse.Namespace) -> BlockCheckpoint:
    """A drafter of the shape that the options name, with the heads of its target's attention."""
    taps = [
        round(1 + i * (spec.num_layers - 3) / max(1, options.taps - 1)) for i in range(options.taps)
    ]
    return tiny_block(
        tiny_block_config(
            spec,
            num_layers=options.layers,
            intermediate_size=options.intermediate or spec.intermediate_size,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            target_layer_ids=tuple(taps),
            block_size=options.block,
            markov_rank=options.rank,
            draft_vocab_size=options.vocabulary,
        )
    )


class Bench:
    """A target and a drafter with a context of some length each."""

    def __init__(
        self, llm: LLM, checkpoint: BlockCheckpoint, length: int, temperature: float
    ) -> None:
        num_blocks = length // llm.config.block_size + 2
        blocks = [BlockId(i) for i in range(num_blocks)]
        tokens = [(7 * i) % 1000 + 20 for i in range(length + 1)]
        config = checkpoint.config
        self._target = llm.new_target(num_blocks * llm.config.block_size)
        features = self._target.score_spans(
            [Span(tokens[:-1], 0, blocks, 1)], config.target_layer_ids
        ).features
        assert features is not None
        self._step = [Span(tokens[-1:], length, blocks, 1)]
        self._runner = llm.new_block_runner(checkpoint, num_blocks * llm.config.block_size)
        self._runner.draft([NewContext(0, blocks, features)], [])
        self._new = [NewContext(length - NEW_POSITIONS, blocks, features[-NEW_POSITIONS:].clone())]
        request = Request(
            RequestId("bench"), tuple(tokens), SamplingParams(temperature=temperature), seed=1
        )
        self._row = [BlockRow(Sequence.of(request), length, blocks, config.num_drafts, "matching")]

    def round(self) -> tuple[float, float]:
        """Seconds of a step and of a draft."""
        start = time.perf_counter()
        self._target.score_spans(self._step)
        middle = time.perf_counter()
        drafted = self._runner.draft(self._new, self._row)
        end = time.perf_counter()
        assert len(drafted[0].tokens) > 0
        return middle - start, end - middle


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--drafter", type=Path, help="directory of a trained drafter")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--intermediate", type=int, help="default: the target's own")
    parser.add_argument("--taps", type=int, default=4, help="target layers that are fused")
    parser.add_argument("--block", type=int, default=7)
    parser.add_argument("--rank", type=int, default=128, help="of the Markov head")
    parser.add_argument("--vocabulary", type=int, default=16384, help="tokens that can be drafted")
    parser.add_argument("--context", type=int, nargs="+", default=[200])
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    llm = LLM(options.model, backend="native", threads=options.threads, kv_cache_tokens=512)
    checkpoint = (
        load_checkpoint(options.drafter) if options.drafter else random_drafter(llm.spec, options)
    )
    floor = Floor.of(checkpoint.config)
    print(
        f"floor: {floor.weights / 1e6:.1f} M weights to read, "
        f"{floor.multiplications / 1e6:.0f} M multiplications"
    )
    cases = []
    for context in options.context:
        bench = Bench(llm, checkpoint, context, options.temperature)
        bench.round()
        rounds = [bench.round() for _ in range(options.rounds)]
        sides = list(zip(*rounds, strict=True))
        step, draft = (statistics.median(side) for side in sides)
        fast_step, fast_draft = (statistics.quantiles(side, n=10)[0] for side in sides)
        ratio = statistics.median(own / of for of, own in rounds)
        print(
            f"context {context}: step {1e3 * step:.3f} ms, draft {1e3 * draft:.3f} ms, "
            f"ratio {ratio:.3f}; fastest tenth {1e3 * fast_step:.3f} and "
            f"{1e3 * fast_draft:.3f} ms, ratio {fast_draft / fast_step:.3f}"
        )
        case = {"context": context, "step": step, "draft": draft, "ratio": ratio}
        fastest = {"step": fast_step, "draft": fast_draft, "ratio": fast_draft / fast_step}
        cases.append({**case, "fastest_tenth": fastest})
    result = {
        "weights": floor.weights,
        "multiplications": floor.multiplications,
        "cases": cases,
        "environment": environment(sys.argv),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
