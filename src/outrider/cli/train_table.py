"""`outrider train --method ngram-table`: count, write, and measure on what was held out."""

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

from outrider.analysis.numbers import acceptance_record
from outrider.analysis.replay import replay_all
from outrider.cli.console import Console
from outrider.core.acceptance import Acceptance
from outrider.drafters.ngram_table import DEFAULT_DRAFT_LEN, NgramTableDrafter
from outrider.drafters.ngram_table_file import TABLE_FILE, NgramTable
from outrider.models.checkpoint import open_checkpoint
from outrider.training.documents import Document, read_documents
from outrider.training.ngram_table import TableRecipe, build_table


def run_table(args: argparse.Namespace) -> int:
    """Build the table; print what it holds and what it is worth on held-out documents."""
    console = Console(no_color=args.no_color)
    options = {"max_order": args.max_order, "min_gain": args.min_gain}
    recipe = TableRecipe(**{name: value for name, value in options.items() if value is not None})
    checkpoint = open_checkpoint(args.model)
    started = time.perf_counter()
    with console.working(f"counting {args.data}"):
        documents = list(read_documents(args.data))
        table = build_table(
            [each for each in documents if not each.is_held_out],
            recipe,
            vocab_size=checkpoint.spec.vocab_size,
            tokenizer=checkpoint.tokenizer.fingerprint,
            target=args.model,
        )
        path = args.output / TABLE_FILE
        table.save(path)
        seconds = time.perf_counter() - started
        held_out = [each for each in documents if each.is_held_out]
        counts = _measure(table, held_out)
    console.say(
        f"{path}: {len(table)} contexts from {table.header.num_tokens} tokens, "
        f"{path.stat().st_size / 1e6:.1f} MB, {seconds:.1f} s"
    )
    if counts.rounds:
        console.say(
            f"acceptance length {counts.acceptance_length:.2f} on {len(held_out)} held-out "
            f"documents, drafts of {DEFAULT_DRAFT_LEN}"
        )
    if args.json:
        console.print_json(_record(table, path.stat().st_size, seconds, held_out, counts))
    return 0


def _measure(table: NgramTable, documents: Sequence[Document]) -> Acceptance:
    drafter = NgramTableDrafter(table, DEFAULT_DRAFT_LEN, min_survival=0.0)
    return replay_all(drafter, _texts(documents))


def _texts(documents: Sequence[Document]) -> Iterator[tuple[list[int], list[int]]]:
    for document in documents:
        prompt, output = document.split()
        if prompt and output:
            yield prompt, output


def _record(
    table: NgramTable,
    num_bytes: int,
    seconds: float,
    held_out: Sequence[Document],
    counts: Acceptance,
) -> dict[str, Any]:
    return {
        "method": "ngram-table",
        "target": table.header.target,
        "contexts": len(table),
        "bytes": num_bytes,
        "counted_tokens": table.header.num_tokens,
        "counted_documents": table.header.num_documents,
        "seconds": seconds,
        "held_out_documents": len(held_out),
        **acceptance_record(counts),
    }
