"""What the native runner's rounding costs, against torch in float32 on the same weights.

    python benchmarks/accuracy.py MODEL --prompts DIR [--tokens 20000] [--weights q8] [--llama]
        [--text FILE] [--json out.json]

The native runner answers each prompt greedily, then every side scores these answers, teacher-forced
in one forward per prompt. Of a quantised GGUF file torch computes with the dequantised weights, so
int8 activations and half-precision keys are all that differs; what a checkpoint keeps unquantised
the native runner rounds to bfloat16, torch does not. Per side: perplexity and its ratio to torch's,
mean KL(torch || side) in nats with its standard error over prompts, and the share of positions with
the same likeliest token. The text is the native runner's own likeliest, so perplexities are low and
the native runner's is flattered a little.

`--text FILE` keeps the answers, or takes those that are there: weight types of one model are then
compared on one text. `benchmarks/requantise.py` makes models of other types. `--weights` says how
the native runner keeps what the checkpoint has not quantised.

`--llama` adds llama.cpp, for GGUF files, through llama-cpp-python. `--partial FILE` keeps what is
done, a line per prompt, and goes on from there when run again. Progress is on stderr, the last line
of stdout is one JSON object.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import PREFILL, LlamaCpp, write_result
from torch import Tensor

from outrider import LLM, SamplingParams
from outrider.analysis.closed_loop import encode_prompt
from outrider.analysis.environment import environment
from outrider.analysis.prompts import PromptRow, load_prompts

TOGETHER = 16
"""Prompts that are answered in one batch."""

Score = Callable[[Sequence[int], Sequence[int]], Tensor]
"""Prompt and continuation → logits, row i predicting `continuation[i]`."""


class LlamaScores(LlamaCpp):
    """llama.cpp, with logits of a given continuation."""

    def score_tokens(self, prompt: Sequence[int], continuation: Sequence[int]) -> Tensor:
        self._forget(0)
        before = list(prompt[:-1])
        for start in range(0, len(before), PREFILL):
            self._run(before[start : start + PREFILL], start, all_logits=False)
        judged = [prompt[-1], *continuation[:-1]]
        self._run(judged, len(before), all_logits=True)
        rows = [self.api.llama_get_logits_ith(self._context, i) for i in range(len(judged))]
        # The pointers are into memory that the next call overwrites.
        copied = [np.ctypeslib.as_array(row, shape=(self._vocab,)).copy() for row in rows]
        return torch.from_numpy(np.stack(copied))


def interleaved(rows: Sequence[PromptRow]) -> list[PromptRow]:
    """Domains in turn, so that any beginning of the list holds all of them."""
    domains: dict[str, list[PromptRow]] = {}
    for row in rows:
        domains.setdefault(row.domain, []).append(row)
    return [row for row in chain(*zip_longest(*domains.values())) if row is not None]


def sums(expected: Tensor, found: Tensor, continuation: Sequence[int]) -> dict[str, float]:
    """Add up over the rows: negative log-likelihood, divergence, equal arg-maxima."""
    token = torch.tensor(continuation)[:, None]
    theirs, ours = (each.to(torch.float64).log_softmax(-1) for each in (expected, found))
    divergences = (theirs.exp() * (theirs - ours)).sum(-1)
    return {
        "nll": -float(ours.gather(-1, token).sum()),
        "kl": float(divergences.sum()),
        "kl_max": float(divergences.max()),
        "same": int((theirs.argmax(-1) == ours.argmax(-1)).sum()),
    }


def answers(llm: LLM, rows: Sequence[PromptRow], max_tokens: int) -> Iterator[tuple[Any, ...]]:
    """Answer greedily, a batch at a time; yields row, prompt tokens, answer tokens."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0)
    for start in range(0, len(rows), TOGETHER):
        group = rows[start : start + TOGETHER]
        prompts = [encode_prompt(llm, row.text, raw=False) for row in group]
        for row, output in zip(group, llm.generate(prompts, params), strict=True):
            yield row, output.prompt_token_ids, output.outputs[0].token_ids


def texts(llm: LLM, args: argparse.Namespace) -> Iterator[tuple[str, list[int], list[int]]]:
    """Read the answers of an earlier run, or make them; yields id, prompt and answer tokens."""
    if args.text is not None and args.text.exists():
        for line in args.text.read_text("utf-8").splitlines():
            yield tuple(json.loads(line))
        return
    for row, prompt, answer in answers(
        llm, interleaved(load_prompts([args.prompts])), args.max_tokens
    ):
        if args.text is not None:
            with args.text.open("a", encoding="utf-8") as file:
                file.write(json.dumps([row.id, list(prompt), list(answer)]) + "\n")
        yield row.id, list(prompt), list(answer)


def measure(args: argparse.Namespace, done: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Score prompts that are not done until there are enough tokens; yields a line per prompt."""
    native = LLM(args.model, backend="native", weights=args.weights, threads=args.threads)
    reference = LLM(args.model, backend="torch", dtype="float32", threads=args.threads)
    sides: dict[str, Score] = {"torch": reference.score_tokens, "native": native.score_tokens}
    if args.llama:
        sides["llama.cpp"] = LlamaScores(args.model, args.threads).score_tokens
    known = {line["id"] for line in done}
    total = sum(line["tokens"] for line in done)
    for name_of_prompt, prompt, answer in texts(native, args):
        if total >= args.tokens:
            return
        if name_of_prompt in known:
            continue
        logits = {name: score(prompt, answer) for name, score in sides.items()}
        scored = {name: sums(logits["torch"], each, answer) for name, each in logits.items()}
        total += len(answer)
        print(f"{name_of_prompt}: {total} of {args.tokens} tokens", file=sys.stderr)
        yield {"id": name_of_prompt, "tokens": len(answer), **scored}


def summary(lines: Sequence[dict[str, Any]], side: str) -> dict[str, float]:
    """Put the prompts' sums together."""
    total = sum(line["tokens"] for line in lines)
    mean = {name: sum(line[side][name] for line in lines) / total for name in ("nll", "kl", "same")}
    spread = sum((line[side]["kl"] - mean["kl"] * line["tokens"]) ** 2 for line in lines)
    reference = sum(line["torch"]["nll"] for line in lines) / total
    return {
        "perplexity": math.exp(mean["nll"]),
        "perplexity_ratio": math.exp(mean["nll"] - reference),
        "kl_mean": mean["kl"],
        "kl_standard_error": math.sqrt(spread) / total,
        "kl_max": max(line[side]["kl_max"] for line in lines),
        "top1_agreement": mean["same"],
    }


def read_partial(path: Path | None, setting: dict[str, Any]) -> list[dict[str, Any]]:
    """Lines of an interrupted run, or none; the file begins with what was asked for."""
    if path is None:
        return []
    if not path.exists():
        path.write_text(json.dumps(setting) + "\n", encoding="utf-8")
    first, *lines = map(json.loads, path.read_text("utf-8").splitlines())
    if first != setting:
        raise SystemExit(f"{path} belongs to another run: {first}; remove it or name another file")
    return lines


def main() -> None:
    """Measure, print a table, end with JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompts", type=Path, required=True, help="directory of .jsonl files")
    parser.add_argument("--tokens", type=int, default=20000, help="stop after so many")
    parser.add_argument("--max-tokens", type=int, default=80, help="per answer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--llama", action="store_true", help="measure llama.cpp too")
    parser.add_argument("--weights", default="bf16", help="bf16, q8 or q4; of unquantised matrices")
    parser.add_argument(
        "--text", type=Path, help="answers of an earlier run, or where to keep them"
    )
    parser.add_argument("--partial", type=Path, help="resume from here")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    setting = {
        "model": Path(args.model).name,
        "weights": args.weights,
        "max_tokens": args.max_tokens,
        "llama": args.llama,
    }
    lines = read_partial(args.partial, setting)
    for line in measure(args, list(lines)):
        lines.append(line)
        if args.partial is not None:
            with args.partial.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    names = ("torch", "native", "llama.cpp") if args.llama else ("torch", "native")
    result = {
        **setting,
        "prompts": len(lines),
        "tokens": sum(line["tokens"] for line in lines),
        "sides": {name: summary(lines, name) for name in names},
        "environment": environment(sys.argv),
    }
    for name, side in result["sides"].items():
        print(
            f"{name:10} perplexity {side['perplexity']:.4f} (x{side['perplexity_ratio']:.5f})   "
            f"KL {side['kl_mean']:.5f} ± {side['kl_standard_error']:.5f} nats   "
            f"same top token {side['top1_agreement']:.4f}"
        )
    write_result(result, args.json)


if __name__ == "__main__":
    main()
