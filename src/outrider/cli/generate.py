"""`outrider generate`: continue prompts and show which tokens were drafted."""

import argparse
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outrider.cli.console import ACCEPTED_COLOUR, DIM, RESET, Console, stoppable
from outrider.cli.inputs import add_prompt_options, prompts_of
from outrider.cli.options import (
    add_model_options,
    add_output_options,
    add_raw_option,
    add_sampling_options,
    add_speculation_options,
    engine_options,
    sampling_params,
    speculative_config,
)

if TYPE_CHECKING:
    from outrider.analysis.prompts import PromptRow
    from outrider.core.outcome import Origin, TokenLogprobs
    from outrider.core.request import SamplingParams
    from outrider.engine.llm import LLM, StreamChunk

INTERRUPTED = 130


@dataclass(slots=True)
class Answer:
    """One continuation as it grows."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    origins: list["Origin"] = field(default_factory=list)
    logprobs: list["TokenLogprobs"] = field(default_factory=list)
    finish_reason: str | None = None

    def grow(self, chunk: "StreamChunk") -> None:
        """Take what a step brought."""
        self.text += chunk.text
        self.tokens += chunk.token_ids
        self.origins += chunk.origins
        self.logprobs += chunk.logprobs
        self.finish_reason = chunk.finish_reason

    def record(self) -> dict[str, Any]:
        """Give it for JSON; a finish reason of None means interrupted."""
        record: dict[str, Any] = {
            "text": self.text,
            "token_ids": self.tokens,
            "origins": [origin.value for origin in self.origins],
            "finish_reason": self.finish_reason,
        }
        if self.logprobs:
            record["logprobs"] = [
                {"token": e.token, "logprob": e.logprob, "rank": e.rank, "top": dict(e.top)}
                for e in self.logprobs
            ]
        return record


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "generate",
        help="continue a prompt, speculatively",
        description="Continue prompts. Accepted draft tokens are coloured.",
    )
    add_prompt_options(parser)
    add_raw_option(parser)
    parser.add_argument(
        "--compare",
        action="store_true",
        help="run plain and speculative and compare; without a prompt a built-in one",
    )
    add_model_options(parser)
    add_speculation_options(parser)
    add_sampling_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Generate or compare."""
    if args.compare:
        from outrider.cli.compare import run_compare

        return run_compare(args)
    params = sampling_params(args)
    speculative = speculative_config(args)
    rows = prompts_of(args)
    from outrider.cli.loading import load

    console = Console(no_color=args.no_color)
    llm = load(args, console, engine_options(args), speculative)
    session = _Session(llm, params, rows, console, raw=args.raw, quiet=args.json)
    with stoppable() as stop:
        was_stopped = session.run(stop.is_set)
    if args.json:
        console.print_json(session.record(args.model))
    else:
        console.say(session.summary())
    if was_stopped:
        console.say("interrupted")
        return INTERRUPTED
    return 0


class _Session:
    """All continuations of one call."""

    def __init__(
        self,
        llm: "LLM",
        params: "SamplingParams",
        rows: "list[PromptRow]",
        console: Console,
        *,
        raw: bool,
        quiet: bool,
    ) -> None:
        from outrider.analysis.closed_loop import encode_prompt

        self._llm, self._params, self._rows, self._console = llm, params, rows, console
        self._prompts = [encode_prompt(llm, row.text, raw=raw) for row in rows]
        self._quiet = quiet
        self._answers = {
            (group, index): Answer() for group in range(len(rows)) for index in range(params.n)
        }
        self._seconds = 0.0
        self._first_token_seconds = 0.0

    def run(self, is_stopped: Any) -> bool:
        """Generate everything; True if the user stopped it."""
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
        return bool(is_stopped())

    def _painter(self) -> Any:
        """What to do with a chunk while it comes: a lone continuation is shown at once."""
        if self._quiet or len(self._answers) > 1:
            return lambda _chunk: None
        console = self._console
        if not console.has_colour:
            return lambda chunk: console.write(chunk.text)
        from outrider.cli.paint import TokenPainter

        if self._llm.config.speculative is not None:
            console.say(
                f"{DIM}coloured: {RESET}{ACCEPTED_COLOUR}accepted draft tokens{RESET}"
                f"{DIM}; the rest is the target's own{RESET}"
            )
        painter = TokenPainter(self._llm.tokenizer, self._prompts[0], self._params)

        def show(chunk: "StreamChunk") -> None:
            for piece, origin in painter.pieces(chunk.text, chunk.token_ids, chunk.origins):
                console.write(piece, colour=ACCEPTED_COLOUR if origin == "accepted" else "")

        return show

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

    def record(self, model: str) -> dict[str, Any]:
        """Everything as one JSON object."""
        from dataclasses import asdict

        from outrider.analysis.numbers import acceptance_record

        speculative = self._llm.config.speculative
        num_tokens = sum(len(answer.tokens) for answer in self._answers.values())
        return {
            "model": model,
            "speculative_config": None if speculative is None else asdict(speculative),
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
