"""One conversation of `outrider chat`."""

import argparse
import contextlib
import sys

from outrider.analysis.prompts import require_unicode
from outrider.cli.console import Console, stoppable
from outrider.cli.loading import load
from outrider.cli.options import engine_options, sampling_params, speculative_config
from outrider.cli.paint import TokenPainter
from outrider.core.request import SamplingParams
from outrider.engine.llm import LLM
from outrider.errors import ConfigError, RequestError

HELP = "/reset forgets the conversation, /exit ends; Ctrl-C stops an answer, Ctrl-D ends"


def run_chat(args: argparse.Namespace) -> int:
    """Talk until the user leaves."""
    params = sampling_params(args)
    if params.n > 1:
        raise ConfigError("chat gives one answer at a time; leave --n out")
    require_unicode(args.system or "", "--system")
    speculative = speculative_config(args)
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
        self, llm: LLM, params: SamplingParams, console: Console, system: str | None
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
        answer = ""
        with stoppable() as stop:
            prompt = self._llm.chat_prompt(self.messages)
            painter = TokenPainter(self._llm.tokenizer, prompt, self._params)
            for _, chunk in self._llm.stream([prompt], self._params):
                answer += chunk.text
                painter.show(
                    self._console, chunk.text, chunk.token_ids, chunk.origins, chunk.sources
                )
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
        except UnicodeDecodeError as error:
            raise ConfigError(f"stdin is not text in this locale's encoding ({error})") from error
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
            require_unicode(text, "stdin")
            conversation.ask(text)
