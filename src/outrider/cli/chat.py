"""`outrider chat`: a conversation in the terminal."""

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING, Any

from outrider.cli.console import ACCEPTED_COLOUR, Console, stoppable
from outrider.cli.options import (
    add_model_options,
    add_output_options,
    add_sampling_options,
    add_speculation_options,
    engine_options,
    sampling_params,
    speculative_config,
)
from outrider.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from outrider.core.request import SamplingParams
    from outrider.engine.llm import LLM

HELP = "/reset forgets the conversation, /exit ends; Ctrl-C stops an answer, Ctrl-D ends"


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("chat", help="talk to a model", description=f"Talk. {HELP}.")
    parser.add_argument("--system", metavar="TEXT", help="instructions before the conversation")
    add_model_options(parser)
    add_speculation_options(parser)
    add_sampling_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Talk until the user leaves."""
    params = sampling_params(args)
    if params.n > 1:
        raise ConfigError("chat gives one answer at a time; leave --n out")
    if args.json:
        raise ConfigError("chat has no JSON output; use outrider generate --json")
    speculative = speculative_config(args)
    from outrider.cli.loading import load

    console = Console(no_color=args.no_color)
    llm = load(args, console, engine_options(args), speculative)
    if llm.tokenizer.chat_template is None:
        raise ConfigError(f"{args.model} has no chat template; use outrider generate --raw")
    console.say(HELP)
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() history and editing
    _talk(Conversation(llm, params, console, args.system))
    return 0


class Conversation:
    """Messages so far and the model that answers them."""

    def __init__(
        self, llm: "LLM", params: "SamplingParams", console: Console, system: str | None
    ) -> None:
        """Start with the system message, if any."""
        self._llm, self._params, self._console = llm, params, console
        self._system = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._system)

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self._system)

    def ask(self, text: str) -> None:
        """Stream the answer and remember it; Ctrl-C ends it and keeps what came."""
        self.messages.append({"role": "user", "content": text})
        try:
            answer = self._answer()
        except RequestError as error:
            self.messages.pop()
            self._console.say(f"{error}; /reset starts over")
            return
        self.messages.append({"role": "assistant", "content": answer})

    def _answer(self) -> str:
        from outrider.cli.paint import TokenPainter

        prompt = self._llm.chat_prompt(self.messages)
        painter = TokenPainter(self._llm.tokenizer, prompt, self._params)
        answer = ""
        with stoppable() as stop:
            for _, chunk in self._llm.stream([prompt], self._params):
                answer += chunk.text
                for piece, origin in painter.pieces(chunk.text, chunk.token_ids, chunk.origins):
                    colour = ACCEPTED_COLOUR if origin == "accepted" else ""
                    self._console.write(piece, colour=colour)
                if stop.is_set():
                    self._console.write(" [stopped]")
                    break
        self._console.print()
        return answer


def _talk(conversation: Conversation) -> None:
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            print(file=sys.stderr)
            continue
        if text == "/exit":
            return
        if text == "/reset":
            conversation.reset()
        elif text.startswith("/"):
            print(f"unknown command {text.split()[0]!r}; {HELP}", file=sys.stderr)
        elif text:
            conversation.ask(text)
