"""One call of `outrider data synthesize` or `outrider data generate`."""

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider.analysis.environment import environment
from outrider.cli.console import Console
from outrider.cli.loading import load
from outrider.cli.options import engine_options
from outrider.engine.llm import LLM
from outrider.errors import ConfigError, OutputFailed
from outrider.models.checkpoint import open_checkpoint
from outrider.models.fingerprint import target_hash
from outrider.tensor.window import Taps
from outrider.training.capture import training_taps
from outrider.training.conversations import read_conversations
from outrider.training.estimate import estimate
from outrider.training.generate import (
    GeneratePlan,
    Generation,
    GenerationProgress,
    plan_generation,
    planned_documents,
)
from outrider.training.settings import GenerateSetting, SynthesisSetting
from outrider.training.shards import DataDirectory, DataManifest
from outrider.training.synthesize import Synthesis, load_openers, prompt_lines, synthesize

_BATCHED_TOKENS = 2048
_MOST_CACHED_TOKENS = 1 << 17
_FOLLOW_UP_TOKENS = 64


def make_prompts(args: argparse.Namespace) -> int:
    """Let the target write prompts."""
    setting = SynthesisSetting(
        counts=dict(args.count),
        temperature=args.temperature,
        top_p=args.top_p,
        max_tokens=args.max_tokens,
        max_overlap=args.max_overlap,
        seed=args.seed,
    )
    openers = load_openers(args.openers)
    exclude = _excluded(args)
    if not args.output.parent.is_dir():
        raise ConfigError(f"there is no directory {args.output.parent}; make it first")
    console = Console(no_color=args.no_color)
    batch = {
        "max_num_seqs": args.concurrency,
        "max_num_batched_tokens": max(_BATCHED_TOKENS, args.concurrency),
    }
    llm = load(args, console, engine_options(args) | batch, None)
    started = time.monotonic()

    def show(kept: int, wanted: int) -> None:
        console.progress("prompts", kept, wanted, started)

    made = synthesize(llm, setting, openers, exclude=exclude, on_prompt=show)
    console.clear()
    _write_lines(args.output, made)
    kept = f"{len(made.prompts)} prompts in {args.output}"
    console.print(f"{kept}, dropped: {_counts(made.dropped) or 'none'}")
    if made.missing:
        console.say(f"fewer than wanted: {_counts(made.missing)} missing; give more openers")
    if args.json:
        console.print_json(
            {
                "model": args.model,
                "setting": asdict(setting),
                "num_prompts": len(made.prompts),
                "dropped": made.dropped,
                "missing": made.missing,
                "seconds": time.monotonic() - started,
                "environment": environment(["outrider", *sys.argv[1:]]),
            }
        )
    return 0


def make_answers(args: argparse.Namespace) -> int:
    """Let the target answer prompts."""
    setting = GenerateSetting(
        max_tokens=args.max_tokens,
        greedy_share=args.greedy_share,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        history=args.history,
        min_answer_tokens=args.min_answer_tokens,
        shard_documents=args.shard_documents,
        is_raw=args.raw,
        seed=args.seed,
    )
    read = read_conversations(args.prompts, limit=args.limit)
    exclude = _excluded(args)
    console = Console(no_color=args.no_color)
    reader = load(args, console, engine_options(args), None)
    taps = _taps(args, reader)
    with console.working("tokenizing prompts"):
        plan = plan_generation(reader, read.conversations, setting, exclude)
    if read.num_empty:
        console.say(f"skipped {read.num_empty} entries without a user's turn")
    if plan.skipped:
        console.say(f"skipped {_counts(plan.skipped)}")
    manifest = _manifest(args, reader, taps, setting)
    generation = Generation(
        _engine(args, reader, plan, setting, taps),
        plan,
        setting,
        DataDirectory(args.output, manifest),
    )
    if generation.pending:
        _announce(args, console, generation, plan, setting, taps)
    if args.estimate_only:
        return 0
    summary = _run(console, generation, args.output)
    console.print(
        f"{summary['num_documents']} documents, {summary['num_answer_tokens']} tokens by the "
        f"target, in {args.output}"
    )
    if args.json:
        command = environment(["outrider", *sys.argv[1:]])
        console.print_json({**manifest.record(), **summary, "environment": command})
    return 0


def _taps(args: argparse.Namespace, llm: LLM) -> Taps:
    if args.features == "none":
        if args.taps is not None:
            raise ConfigError("--taps names layers, but --features none keeps none; leave one out")
        return ()
    return training_taps(llm.spec.num_layers, args.taps)


def _engine(
    args: argparse.Namespace, reader: LLM, plan: GeneratePlan, setting: GenerateSetting, taps: Taps
) -> LLM:
    """Make an engine over the loaded weights with a KV cache that suits the documents."""
    context = reader.engine.max_context_len
    lengths = sorted(
        (
            min(context, len(tokens) + turns * (setting.max_tokens + _FOLLOW_UP_TOKENS))
            for tokens, turns in planned_documents(plan, range(len(plan.shards)))
        ),
        reverse=True,
    )
    wanted = sum(lengths[: args.concurrency]) + args.concurrency * reader.config.block_size
    return reader.sibling(
        max_num_seqs=args.concurrency,
        max_num_batched_tokens=max(_BATCHED_TOKENS, args.concurrency),
        kv_cache_tokens=max(min(wanted, _MOST_CACHED_TOKENS), lengths[0]),
        max_context_len=context,
        prefix_caching=False,
        feature_taps=taps if args.features == "capture" else (),
    )


def _manifest(
    args: argparse.Namespace, llm: LLM, taps: Taps, setting: GenerateSetting
) -> DataManifest:
    return DataManifest(
        target=args.model,
        target_hash=target_hash(open_checkpoint(args.model)),
        tap_layers=taps,
        hidden_size=llm.spec.hidden_size,
        vocab_size=llm.spec.vocab_size,
        features=args.features == "capture",
        options=asdict(setting),
    )


def _announce(
    args: argparse.Namespace,
    console: Console,
    generation: Generation,
    plan: GeneratePlan,
    setting: GenerateSetting,
    taps: Taps,
) -> None:
    """Say what is left to do and what it will take."""
    with console.working("measuring"):
        expected = estimate(
            generation.llm,
            plan,
            generation.pending,
            setting.max_tokens,
            taps=taps,
            mode=args.features,
            free_bytes=generation.directory.free_bytes,
        )
    num_finished = len(plan.shards) - len(generation.pending)
    if num_finished:
        console.say(f"going on: {num_finished} of {len(plan.shards)} shards are finished")
    for line in expected.lines():
        console.say(line)


def _run(console: Console, generation: Generation, output: Path) -> dict[str, Any]:
    started = time.monotonic()
    num_shards = len(generation.pending)
    finished = 0

    def show(progress: GenerationProgress) -> None:
        nonlocal finished
        finished = progress.num_finished_shards
        rate = progress.num_answer_tokens / max(time.monotonic() - started, 1e-9)
        what = f"documents, {rate:.0f} tokens/s"
        console.progress(what, progress.num_done, progress.num_documents, started)

    try:
        return generation.run(show)
    except KeyboardInterrupt:
        console.say(
            f"{finished} of {num_shards} shards were finished and are in {output}; the same "
            "command makes the others"
        )
        raise
    finally:
        console.clear()


def _excluded(args: argparse.Namespace) -> list[str]:
    if not args.exclude:
        return []
    return [turn for one in read_conversations(args.exclude).conversations for turn in one.turns]


def _write_lines(path: Path, made: Synthesis) -> None:
    """Write the prompts beside the path and rename, so that no half file appears."""
    unfinished = path.with_name(path.name + ".tmp")
    try:
        unfinished.write_text(
            "".join(f"{line}\n" for line in prompt_lines(made.prompts)), encoding="utf-8"
        )
        unfinished.replace(path)
    except OSError as error:
        raise OutputFailed(f"{path} cannot be written ({error}); free some space") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
