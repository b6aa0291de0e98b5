"""Outrider's speculative decoding against the best of llama.cpp's ways, on the same GGUF files.

    pip install llama-cpp-python
    python benchmarks/peers_speculative.py MODEL.gguf --draft-model SMALL.gguf \
        --prompts code.jsonl edit.jsonl --limit 8 --out turns.jsonl --json result.json

One request at a time, greedy, the same prompt token ids, the same stop tokens, nothing cached from
one prompt to the next. llama.cpp is driven through its C interface, which needs no detokenizing and
no scheduling: decoding plainly, with the small model as draft model, and with three kinds of n-gram
drafts (`peer_loops.py`), `ngram-simple` and `lookup` as llama.cpp has them, the first also with its
default options, and `prompt-lookup` as llama-cpp-python has it. The options of each are chosen for
each domain by itself, by tokens per second on the prompts of `--grid`; of the ways measured then,
the fastest over all prompts of a domain is what Outrider is compared with, chosen after the fact.

The sides take turns on every prompt, in an order that rotates; llama.cpp reads a prompt once and
goes back to its end for every way. Tokens per second are given for decoding alone, from the first
token to the last, and with the reading of the prompt. `--out` keeps a prompt's turns as they are
made, and a run that was broken off goes on behind them. The last line of stdout is one JSON object.

OpenMP's waiting is left as it is: threads that sleep at every barrier would slow llama.cpp down.
Before every turn there is a pause in which the other engine's threads go to sleep; that they do is
reported as the processor time of *surplus* threads, all but the `--threads` busiest of a turn.
"""

import argparse
import ctypes
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from peer_loops import (
    Decoded,
    Drafter,
    DraftModel,
    NgramCache,
    NgramSimple,
    NoDrafts,
    common_length,
    decode,
)
from peer_turns import OURS, PLAIN, THEIRS, Departure, Log, PromptTurns, Turn, report, speed_of
from peers import PREFILL, LlamaCpp, write_result

from outrider import LLM, SamplingParams
from outrider.analysis.environment import environment
from outrider.analysis.prompts import PromptRow, load_prompts
from outrider.drafters.config import SpeculativeConfig

GRID_FILE = Path(__file__).with_name("peers_grid.jsonl")
# The pause before a turn: OpenMP's threads spin for some milliseconds before they sleep.
SETTLE_SECONDS = 0.05
WARM_UP_TOKENS = 8
DRAFT_MODEL = "draft-model"
GRID: dict[str, list[dict[str, Any]]] = {
    DRAFT_MODEL: [
        {"length": length, "least": least}
        for least, lengths in ((0.0, (1, 2, 3, 5, 8)), (0.75, (3, 5, 8)))
        for length in lengths
    ],
    "ngram-simple": [
        {"size": size, "length": length}
        for size, lengths in ((2, (3,)), (4, (15, 31)), (6, (48,)), (8, (15, 48)), (16, (48,)))
        for length in lengths
    ],
    # As llama.cpp sets it where nothing is said.
    "ngram-simple-12-48": [{"size": 12, "length": 48}],
    "lookup": [{"length": length} for length in (1, 3, 7)],
    "prompt-lookup": [
        {"max_ngram_size": size, "num_pred_tokens": length}
        for size, length in ((3, 1), (2, 2), (2, 10))
    ],
}


class PromptLookup:
    """The n-gram drafts of llama-cpp-python, its own class."""

    def __init__(self, **options: int) -> None:
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        self._find = LlamaPromptLookupDecoding(**options)

    def draft(self, tokens: Sequence[int], most: int) -> list[int]:
        """Ask it."""
        found = self._find(np.array(tokens, dtype=np.intc))
        return [int(token) for token in found[:most]]


class Context(LlamaCpp):
    """A llama.cpp model with one sequence: the `Model` of `peer_loops`."""

    def __init__(self, path: str, threads: int) -> None:
        super().__init__(path, threads)
        self._logits = np.zeros(0, dtype=np.float32)
        self._handle = self.api.llama_get_model(self._context)

    def forward(self, tokens: Sequence[int], start: int, judged: int) -> list[int]:
        """Compute tokens, in chunks if there are many; arg-max of the last `judged` rows."""
        for first in range(0, len(tokens), PREFILL):
            chunk = list(tokens[first : first + PREFILL])
            self._run(chunk, start + first, all_logits=judged > 1)
        found = self.api.llama_get_logits(self._context)
        rows = np.ctypeslib.as_array(found, shape=(judged, self._vocab))
        self._logits = rows[-1]
        return [int(token) for token in rows.argmax(1)]

    def top_probability(self) -> float:
        """Of the last row of the last forward."""
        return float(1 / np.exp(self._logits - self._logits.max()).sum())

    def margin(self, tokens: Sequence[int], one: int, other: int) -> float:
        """Logit of `one` less that of `other` behind tokens that are read from the start."""
        self.forget(0)
        self.forward(tokens, 0, 1)
        return float(self._logits[one] - self._logits[other])

    def forget(self, start: int) -> None:
        """Drop positions from `start`."""
        self._forget(start)

    def encode(self, text: str) -> list[int]:
        """Tokenize a text as it is."""
        data = text.encode()
        found = (ctypes.c_int32 * (len(data) + 1))()
        vocab = self.api.llama_model_get_vocab(self._handle)
        # Nothing is added in front; special tokens are read where they are written.
        flags = (False, True)
        count = self.api.llama_tokenize(vocab, data, len(data), found, len(found), *flags)
        return list(found[:count])


class Theirs:
    """llama.cpp: the target, the draft model, and the prompt that both hold."""

    def __init__(self, model: str, draft_model: str, threads: int, stops: frozenset[int]) -> None:
        self.target = Context(model, threads)
        self.drafting = DraftModel(Context(draft_model, threads), 1, 0.0)
        self._stops = stops
        self._prompt: Sequence[int] = ()
        self._first = 0
        self._read = {"target": 0.0, DRAFT_MODEL: 0.0}

    def hold(self, prompt: Sequence[int]) -> None:
        """Read a prompt with the target and with the draft model."""
        self._prompt = prompt
        begun = time.perf_counter()
        self.target.forget(0)
        self._first = self.target.forward(prompt, 0, 1)[0]
        read = time.perf_counter()
        self.drafting.read(prompt)
        self._read = {"target": read - begun, DRAFT_MODEL: time.perf_counter() - read}

    def _drafter(self, way: str, options: dict[str, Any]) -> Drafter:
        if way == DRAFT_MODEL:
            self.drafting.length, self.drafting.least = options["length"], options["least"]
            return self.drafting
        if way == PLAIN:
            return NoDrafts()
        if way.startswith("ngram-simple"):
            return NgramSimple(**options)
        return NgramCache(**options) if way == "lookup" else PromptLookup(**options)

    def turn(self, way: str, options: dict[str, Any], max_tokens: int) -> Turn:
        """Decode behind the prompt that is held."""
        drafter = self._drafter(way, options)
        before = self._forward_seconds()
        made: Decoded = decode(
            self.target, drafter, self._prompt, self._first, self._stops, max_tokens
        )
        own = made.seconds - (self._forward_seconds() - before)
        read = self._read["target"] + (self._read[DRAFT_MODEL] if way == DRAFT_MODEL else 0.0)
        return Turn(made.tokens, read, made.seconds, made.rounds, made.drafted, made.accepted, own)

    def _forward_seconds(self) -> float:
        model = self.drafting.model
        assert isinstance(model, Context)
        return self.target.forward_seconds + model.forward_seconds


class Ours:
    """Outrider: a plain engine and one for each drafter, over the same weights."""

    def __init__(self, args: argparse.Namespace) -> None:
        plain = LLM(
            args.model,
            backend="native",
            threads=args.threads,
            prefix_caching=False,
            kv_cache_tokens=4096,
        )
        self.engines = {PLAIN: plain}
        for name in args.drafts:
            config: dict[str, Any] | SpeculativeConfig = {"method": name}
            if name == "combined":
                shipped = plain.sibling(speculative_config={"method": "auto"}).config.speculative
                assert shipped is not None
                config = replace(shipped, method=name, model=args.draft_model, network=DRAFT_MODEL)
            self.engines[name] = plain.sibling(speculative_config=config)

    def turn(self, name: str, prompt: Sequence[int], max_tokens: int) -> Turn:
        """Read the prompt and go on."""
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0)
        made = self.engines[name].generate([list(prompt)], params)[0].outputs[0]
        counts = made.acceptance
        return Turn(
            list(made.token_ids),
            made.first_token_time - made.arrival_time,
            made.finish_time - made.first_token_time,
            # The first token has a round of its own.
            counts.rounds - 1,
            counts.drafted,
            counts.accepted,
        )


def thread_seconds() -> dict[int, float]:
    """Processor time of every thread of this process by its number; empty if not on Linux."""
    found = {}
    for folder in Path("/proc/self/task").glob("*"):
        try:
            found[int(folder.name)] = int((folder / "schedstat").read_text().split()[0]) * 1e-9
        except OSError:
            continue
    return found


class Match:
    """Both engines in one process, warm."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._max_tokens, self._threads = args.max_tokens, args.threads
        self.ours = Ours(args)
        self.llm = self.ours.engines[PLAIN]
        warm = self.encode("Write one sentence.")[1]
        for name in self.ours.engines:
            self.ours.turn(name, warm, WARM_UP_TOKENS)
        stops = self.llm.spec.stop_token_ids
        self.theirs = Theirs(args.model, args.draft_model, args.threads, stops)
        self.theirs.hold(warm)
        for way, options in GRID.items():
            self.theirs.turn(way, options[0], WARM_UP_TOKENS)

    def encode(self, text: str) -> tuple[str, tuple[int, ...]]:
        """Give a user's message in the model's chat template, as text and as ids."""
        template = self.llm.tokenizer.chat_template
        assert template is not None, "this benchmark is for chat models"
        message = [{"role": "user", "content": text}]
        rendered = template.render(message, add_generation_prompt=True)
        return rendered, tuple(self.llm.chat_prompt(message))

    def choose(self, rows: Sequence[PromptRow], max_tokens: int) -> dict[str, dict[str, Any]]:
        """Try all options of llama.cpp's ways; the best by domain and way."""
        found: dict[tuple[str, str, int], list[Turn]] = {}
        for row in rows:
            self.theirs.hold(self.encode(row.text)[1])
            for way, listed in GRID.items():
                for number, options in enumerate(listed):
                    turn = self.theirs.turn(way, options, max_tokens)
                    found.setdefault((row.domain, way, number), []).append(turn)
            sys.stderr.write(f"options tried on {row.id}\n")
        return {
            domain: {
                way: max(
                    (
                        {**options, "speed": speed_of(found[domain, way, number])}
                        for number, options in enumerate(listed)
                    ),
                    key=lambda one: one["speed"],
                )
                for way, listed in GRID.items()
            }
            for domain in dict.fromkeys(row.domain for row in rows)
        }

    def play(self, row: PromptRow, ways: dict[str, dict[str, Any]], number: int) -> PromptTurns:
        """Let all sides decode a prompt; `number` rotates who begins."""
        text, prompt = self.encode(row.text)
        own = [(OURS, name) for name in self.ours.engines]
        others = [(THEIRS, way) for way in (PLAIN, *ways)]
        order = [side for pair in zip(own, others, strict=False) for side in pair]
        order += others[len(own) :] + own[len(others) :]
        turns: dict[str, Turn] = {}
        is_held = False
        for side, way in order[number % len(order) :] + order[: number % len(order)]:
            time.sleep(SETTLE_SECONDS)
            if side == THEIRS and not is_held:
                self.theirs.hold(prompt)
                is_held = True
            turns[f"{side} {way}"] = self._turn(side, way, prompt, ways.get(way, {}))
        named = {f"{side} {way}": turns[f"{side} {way}"] for side, way in order}
        same_ids = self.theirs.target.encode(text) == list(prompt)
        left = self._left_plain(prompt, named)
        return PromptTurns(row.id, row.domain, len(prompt), named, same_ids, left)

    def _turn(self, side: str, way: str, prompt: Sequence[int], options: dict[str, Any]) -> Turn:
        before = thread_seconds()
        if side == OURS:
            turn = self.ours.turn(way, prompt, self._max_tokens)
        else:
            known = {name: value for name, value in options.items() if name != "speed"}
            turn = self.theirs.turn(way, known, self._max_tokens)
        after = thread_seconds()
        spent = sorted(after[thread] - before.get(thread, 0.0) for thread in after)
        surplus = sum(spent[: -self._threads]) if after else None
        return replace(turn, surplus_seconds=surplus)

    def _left_plain(self, prompt: Sequence[int], turns: dict[str, Turn]) -> dict[str, Departure]:
        found = {}
        for side, turn in turns.items():
            engine = side.split(" ")[0]
            plain = turns[f"{engine} {PLAIN}"].tokens
            if turn.tokens == plain:
                continue
            at, margin = common_length(plain, turn.tokens), None
            if engine == THEIRS and at < min(len(plain), len(turn.tokens)):
                before, pair = [*prompt, *plain[:at]], (plain[at], turn.tokens[at])
                margin = self.theirs.target.margin(before, *pair)
            found[side] = Departure(at, margin)
        return found


def in_turns(paths: Sequence[str], limit: int | None) -> Iterator[PromptRow]:
    """Give the prompts of several files, one of each after the other."""
    files = [load_prompts([path], limit=limit) for path in paths]
    for number in range(max(map(len, files))):
        yield from (file[number] for file in files if number < len(file))


def build_of_theirs() -> dict[str, str]:
    """Say which llama.cpp was measured and what it was compiled for."""
    import llama_cpp

    system = llama_cpp.llama_print_system_info().decode()
    return {"llama_cpp_python": llama_cpp.__version__, "system_info": system}


def main() -> None:
    """Measure, print tables, end with JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="GGUF file of the target")
    parser.add_argument("--draft-model", required=True, help="GGUF file of a small model")
    parser.add_argument("--prompts", nargs="+", required=True)
    parser.add_argument("--limit", type=int, help="prompts of each file")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--drafts", nargs="+", default=["auto", "suffix", "combined"])
    parser.add_argument("--grid", default=str(GRID_FILE), help="prompts that choose options")
    parser.add_argument("--grid-limit", type=int, help="prompts of it, at most")
    parser.add_argument("--grid-tokens", type=int, default=48)
    parser.add_argument("--minutes", type=float, help="begin no prompt after this time")
    parser.add_argument("--out", type=Path, help="file of turns, to go on with")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    free = {"limit", "minutes", "out", "json"}
    log = Log(args.out, {name: own for name, own in vars(args).items() if name not in free})
    rows = list(in_turns(args.prompts, args.limit))
    begun = time.monotonic()
    left = [row for row in rows if row.id not in log.done]
    if left:
        match = Match(args)
        if log.ways is None:
            tried = load_prompts([args.grid], limit=args.grid_limit)
            log.begin(match.choose(tried, args.grid_tokens))
        for row in left:
            if args.minutes is not None and time.monotonic() - begun > 60 * args.minutes:
                break
            log.add(match.play(row, log.ways_of(row.domain), rows.index(row)))
            sys.stderr.write(f"{len(log.done)} prompts done, {row.id} the last\n")
    record = report(list(log.done.values()), log.ways or {})
    options = {name: str(own) if isinstance(own, Path) else own for name, own in vars(args).items()}
    result = {
        **record,
        "args": options,
        "llamacpp": build_of_theirs(),
        "environment": environment(sys.argv),
    }
    write_result(result, args.json)


if __name__ == "__main__":
    main()
