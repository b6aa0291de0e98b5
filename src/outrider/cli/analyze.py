"""`outrider analyze`: how predictable is what the target writes?"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider.cli.console import Console
from outrider.cli.inputs import add_prompt_set_options
from outrider.cli.options import add_model_options, add_output_options, engine_options, seats
from outrider.cli.parsing import integer, number
from outrider.errors import ConfigError

SHOWN_TOKENS = 16


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "analyze",
        help="see how predictable a workload is before drafting",
        description="The target continues the prompts plainly; every token is then looked at: "
        "entropy, top-1 probability, surprise, by domain, with ceilings for drafting.",
    )
    add_prompt_set_options(parser)
    parser.add_argument(
        "--concurrency", type=integer(1), default=8, metavar="C", help="requests at a time"
    )
    parser.add_argument(
        "--max-tokens", type=integer(1), default=128, metavar="N", help="per prompt"
    )
    parser.add_argument("--temperature", type=number, default=0.0, metavar="T", help="0 is greedy")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first prompt")
    parser.add_argument(
        "--draft-len", type=integer(1), default=7, metavar="N", help="longest draft of the ceilings"
    )
    parser.add_argument(
        "--draft-cost",
        type=number,
        default=0.05,
        metavar="C",
        help="of a draft token, in plain steps, for the figure",
    )
    parser.add_argument(
        "--show-tokens",
        type=integer(0),
        default=SHOWN_TOKENS,
        metavar="N",
        help="tokens of the first output to list",
    )
    parser.add_argument("--plot", metavar="FILE.svg", help="write the figure of four panels")
    parser.add_argument("--html", metavar="FILE.html", help="write a page with every token shaded")
    add_model_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Analyze and report."""
    from outrider.analysis.environment import environment
    from outrider.analysis.predictability import AnalyzeSetting, analyze
    from outrider.analysis.predictability_page import predictability_page
    from outrider.analysis.predictability_report import (
        predictability_figure,
        predictability_lines,
        predictability_record,
        token_lines,
    )
    from outrider.analysis.prompts import load_prompts
    from outrider.cli.loading import load

    if args.draft_cost < 0:
        raise ConfigError(f"--draft-cost is {args.draft_cost}, but a cost is 0 or more")
    setting = AnalyzeSetting(
        concurrency=args.concurrency,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        seed=args.seed,
        raw=args.raw,
        draft_len=args.draft_len,
    )
    rows = load_prompts(args.prompts, limit=args.limit)
    console = Console(no_color=args.no_color)
    llm = load(args, console, engine_options(args) | seats(setting.concurrency), None)
    started = time.monotonic()
    found = analyze(
        llm, rows, setting, lambda what, done, total: console.progress(what, done, total, started)
    )
    console.clear()

    def spell(tokens: Sequence[int]) -> list[str]:
        return [llm.tokenizer.decode([each], skip_special_tokens=False) for each in tokens]

    lines = predictability_lines(found)
    first = found.texts[0]
    shown = token_lines(first, spell(first.tokens), args.show_tokens)
    for line in [*lines, "", *shown]:
        console.print(line)
    chart = predictability_figure(found, draft_cost=args.draft_cost)
    title = f"How predictable {args.model} is"
    page = predictability_page(found, spell, title=title, lines=lines, chart=chart)
    for name, content in ((args.plot, chart), (args.html, page)):
        if name is not None:
            Path(name).write_text(content, "utf-8")
            console.say(f"wrote {name}")
    if args.json:
        command = ["outrider", *sys.argv[1:]]
        record = {"model": args.model, "backend": llm.backend, "setting": asdict(setting)}
        seconds = time.monotonic() - started
        record |= predictability_record(found) | {"seconds": seconds}
        console.print_json(record | {"environment": environment(command)})
    return 0
