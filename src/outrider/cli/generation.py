"""One call of `outrider generate`: stream, show, sum up."""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.analysis.closed_loop import encode_prompt
from outrider.analysis.numbers import acceptance_record, finite
from outrider.analysis.prompts import PromptRow
from outrider.cli.console import Console, stoppable
from outrider.cli.inputs import prompts_of
from outrider.cli.loading import load, method_of, speculation_record
from outrider.cli.options import engine_options, sampling_params, speculative_config
from outrider.cli.paint import TokenPainter, legend
from outrider.core.outcome import Origin, TokenLogprobs
from outrider.core.request import SamplingParams
from outrider.engine.llm import LLM
from outrider.engine.output import StreamChunk

INTERRUPTED = 130


@dataclass(slots=True)
class Answer:
    """One continuation as it grows."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    sources: list[str | None] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None

    def grow(self, chunk: StreamChunk) -> None:
        """Take what a step brought."""
        self.text += chunk.text
        self.tokens += chunk.token_ids
        self.origins += chunk.origins
        self.sources += chunk.sources
        self.logprobs += chunk.logprobs
        self.finish_reason = chunk.finish_reason

    def record(self) -> dict[str, Any]:
        """Give it for JSON; a finish reason of None means interrupted."""
        return {
            "text": self.text,
            "token_ids": self.tokens,
            "origins": [origin.value for origin in self.origins],
            "sources": self.sources,
            "finish_reason": self.finish_reason,
            "logprobs": [
                {
                    "token": each.token,
                    "logprob": finite(each.logprob),
                    "rank": each.rank,
                    "top": [[token, finite(logprob)] for token, logprob in each.top],
                }
                for each in self.logprobs
            ],
        }


def run_generate(args: argparse.Namespace) -> int:
    """Generate as the options say; 130 if Ctrl-C cut it short."""
    params = sampling_params(args)
    speculative = speculative_config(args)
    rows = prompts_of(args)
    console = Console(no_color=args.no_color)
    llm = load(args, console, engine_options(args), speculative)
    session = Session(llm, params, rows, console, raw=args.raw, quiet=args.json)
    with stoppable() as stop:
        session.run(stop.is_set)
    if args.json:
        console.print_json({"model": args.model, **session.record()})
    else:
        console.say(session.summary())
    if stop.is_set():
        console.say("interrupted")
        return INTERRUPTED
    return 0


class Session:
    """All continuations of one call."""

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        rows: Sequence[PromptRow],
        console: Console,
        *,
        raw: bool,
        quiet: bool,
    ) -> None:
        """Tokenize the prompts; `quiet` shows nothing."""
        self._llm, self._params, self._rows, self._console = llm, params, rows, console
        self._prompts = [encode_prompt(llm, row.text, raw=raw) for row in rows]
        self._quiet = quiet
        self._answers = {
            (group, index): Answer() for group in range(len(rows)) for index in range(params.n)
        }
        self._seconds = 0.0
        self._first_token_seconds = 0.0

    def run(self, is_stopped: Callable[[], bool]) -> None:
        """Generate everything, or until the user has enough."""
        show = self._painter()
        started = time.perf_counter()
        for group, chunk in self._llm.stream(self._prompts, self._params):
            if chunk.token_ids and not self._first_token_seconds:
                self._first_token_seconds = time.perf_counter() - started
            self._answers[group, chunk.index].grow(chunk)
            show(chunk)
            if is_stopped():
                break
        self._seconds = time.perf_counter() - started
        if not self._quiet:
            self._finish_output()

    def _painter(self) -> Callable[[StreamChunk], None]:
        """Choose what to do with a chunk: a lone continuation is shown as it comes."""
        console = self._console
        if len(self._answers) > 1:
            return self._counter()
        if self._quiet:
            return lambda _chunk: None
        if console.has_colour and self._llm.config.speculative is not None:
            console.say(legend(method_of(self._llm)))
        painter = TokenPainter(self._llm.tokenizer, self._prompts[0], self._params)
        return lambda chunk: painter.show(
            console, chunk.text, chunk.token_ids, chunk.origins, chunk.sources
        )

    def _counter(self) -> Callable[[StreamChunk], None]:
        """Count finished continuations on stderr."""
        started = time.monotonic()

        def count(_chunk: StreamChunk) -> None:
            done = sum(answer.finish_reason is not None for answer in self._answers.values())
            self._console.progress("continuations", done, len(self._answers), started)

        return count

    def _finish_output(self) -> None:
        if len(self._answers) == 1:
            self._console.print()
            return
        for (group, index), answer in self._answers.items():
            number = f" ({index + 1} of {self._params.n})" if self._params.n > 1 else ""
            self._console.print(f"== {self._rows[group].id}{number}")
            self._console.write(answer.text)
            self._console.print()

    def summary(self) -> str:
        """Speed and acceptance in one line."""
        num_tokens = sum(len(answer.tokens) for answer in self._answers.values())
        speed = num_tokens / self._seconds if self._seconds else 0.0
        parts = [f"{num_tokens} tokens in {self._seconds:.2f} s, {speed:.1f} tokens/s"]
        counts = self._llm.engine.acceptance
        if counts.verified:
            parts.append(f"acceptance length {counts.acceptance_length:.2f}")
            parts.append(f"{counts.acceptance_rate:.0%} of verified draft tokens accepted")
        return ", ".join(parts)

    def record(self) -> dict[str, Any]:
        """Give everything as one JSON object."""
        num_tokens = sum(len(answer.tokens) for answer in self._answers.values())
        return {
            "speculative_config": speculation_record(self._llm),
            "outputs": [
                {
                    "id": self._rows[group].id,
                    "index": index,
                    "prompt": self._rows[group].text,
                    "num_prompt_tokens": len(self._prompts[group]),
                    **answer.record(),
                }
                for (group, index), answer in self._answers.items()
            ],
            "seconds": self._seconds,
            "first_token_seconds": self._first_token_seconds,
            "output_throughput": num_tokens / self._seconds if self._seconds else None,
            **acceptance_record(self._llm.engine.acceptance),
        }
