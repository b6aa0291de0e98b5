"""`outrider train --method dspark` and `dflash`: a block drafter by gradient descent."""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from outrider.cli.console import Console
from outrider.cli.parsing import integer, number
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.training.loop import LoopConfig, Metrics, Trainer
    from outrider.training.run import RunOptions
    from outrider.training.setup import NetworkOptions

INTERRUPTED = 130
_LAYOUTS = ("anchor-first", "anchor-drop")
_MARKOV_TYPES = ("vanilla", "gated", "rnn")


def add_block_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of both methods; None means the method's own default."""
    run = parser.add_argument_group("dspark, dflash: the run")
    run.add_argument("--minutes", type=number, metavar="M", help="train this long")
    run.add_argument("--steps", type=integer(1), metavar="N", help="train this many steps instead")
    run.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    run.add_argument("--seed", type=integer(0), metavar="N", help="of weights and batches")
    run.add_argument("--threads", type=integer(1), metavar="N", help="threads (default: all cores)")
    run.add_argument(
        "--eval-minutes", type=number, metavar="M", help="between looks at held-out text"
    )
    run.add_argument(
        "--held-out-documents", type=integer(1), metavar="N", help="documents looked at"
    )
    network = parser.add_argument_group("dspark, dflash: the network")
    network.add_argument("--layers", type=integer(1), metavar="N", help="layers (default: 2)")
    network.add_argument(
        "--intermediate-size", type=integer(1), metavar="N", help="of the MLP (default: target's)"
    )
    network.add_argument(
        "--block-size", type=integer(1), metavar="N", help="slots per block (default: 7)"
    )
    network.add_argument("--layout", choices=_LAYOUTS, help="what slot 0 predicts")
    network.add_argument(
        "--mask-token", type=integer(0), metavar="ID", help="fills the open slots (default: 0)"
    )
    network.add_argument(
        "--draft-vocab", type=integer(16), metavar="N", help="tokens to draft (default: 16384)"
    )
    network.add_argument(
        "--markov-rank", type=integer(0), metavar="R", help="0 for none (default: 128, dflash 0)"
    )
    network.add_argument("--markov-type", choices=_MARKOV_TYPES, help="(default: vanilla)")
    network.add_argument(
        "--confidence", action=argparse.BooleanOptionalAction, help="(default: dspark only)"
    )
    network.add_argument(
        "--feature-norm",
        action=argparse.BooleanOptionalAction,
        help="normalise tapped layers before fusing; other engines cannot (default: yes)",
    )
    _add_loss_options(parser)


def _add_loss_options(parser: argparse.ArgumentParser) -> None:
    loss = parser.add_argument_group("dspark, dflash: loss and optimiser")
    loss.add_argument("--ce", type=number, metavar="W", help="weight of cross-entropy")
    loss.add_argument("--l1", type=number, metavar="W", help="weight of the L1 distance")
    loss.add_argument("--kl", type=number, metavar="W", help="weight of the KL divergence")
    loss.add_argument(
        "--d-pace", type=number, metavar="A", help="weigh slots by D-PACE, smoothed by A"
    )
    loss.add_argument("--lr", type=number, metavar="RATE", help="of AdamW (default: 0.002)")
    loss.add_argument(
        "--muon-lr", type=number, metavar="RATE", help="of Muon, 0 for AdamW (default: 0.002)"
    )
    loss.add_argument(
        "--muon-rows",
        type=integer(1),
        metavar="N",
        help="Muon in pieces of N rows: cheaper for wide targets (default: whole matrices)",
    )
    loss.add_argument(
        "--blocks-per-step", type=integer(1), metavar="N", help="blocks per step (default: 200)"
    )
    loss.add_argument(
        "--anchor-share", type=number, metavar="P", help="of a document's anchors (default: 0.5)"
    )
    loss.add_argument(
        "--all-candidates",
        action="store_true",
        help="score the whole draft vocabulary in every batch",
    )


def run_block(args: argparse.Namespace) -> int:
    """Train, and print the held-out acceptance at the end."""
    import torch

    from outrider.cli.train_curve import write_curve
    from outrider.models.checkpoint import open_checkpoint
    from outrider.training.checkpoint import METRICS_FILE
    from outrider.training.run import resume_run, start_run

    console = Console(no_color=args.no_color)
    if (args.minutes is None) == (args.steps is None):
        raise ConfigError(
            "how long to train must be said once: give --minutes, from which the learning rate's "
            "schedule is planned, or --steps"
        )
    torch.set_num_threads(args.threads or os.cpu_count() or 1)
    options = _run_options(args)
    make = resume_run if args.resume else start_run
    with console.working(f"reading {args.data}"):
        trainer = make(args.model, open_checkpoint(args.model), args.data, args.output, options)
    with _stopping(trainer):
        counts = trainer.run(lambda metrics: _show(console, metrics))
    record = {
        "method": args.method,
        "target": args.model,
        "steps": trainer.progress.step,
        "slots": trainer.progress.slots,
        "seconds": trainer.progress.seconds,
        "best_mean_accept_length": trainer.progress.best,
        "mean_accept_length": counts.mean_accept_length,
        "conditional_accept_rates": counts.conditional_accept_rates,
    }
    console.say(
        f"{args.output}/best: acceptance length {trainer.progress.best:.2f} on held-out documents"
    )
    if (curve := write_curve(args.output / METRICS_FILE)) is not None:
        console.say(f"{curve}: loss and acceptance")
    if args.json:
        console.print_json(record)
    if trainer.stop_asked:
        console.say("stopped; the same command with --resume goes on")
        return INTERRUPTED
    return 0


def _run_options(args: argparse.Namespace) -> "RunOptions":
    from outrider.native import availability
    from outrider.training.run import RunOptions

    machine = None
    if availability.fault() is None:
        from outrider.native import _native

        machine = _native.Machine(args.threads or os.cpu_count() or 1)
    return RunOptions(method=args.method, network=_network(args), loop=_loop(args), machine=machine)


def _network(args: argparse.Namespace) -> "NetworkOptions":
    from outrider.training.setup import NetworkOptions

    is_dspark = args.method == "dspark"
    chosen: dict[str, Any] = {
        "num_layers": args.layers,
        "intermediate_size": args.intermediate_size,
        "block_size": args.block_size,
        "layout": args.layout,
        "mask_token_id": args.mask_token,
        "draft_vocab_size": args.draft_vocab,
        "markov_rank": args.markov_rank if args.markov_rank is not None or is_dspark else 0,
        "markov_type": args.markov_type,
        "fc_norm": args.feature_norm,
        "has_confidence_head": is_dspark if args.confidence is None else args.confidence,
    }
    return NetworkOptions(**_given(chosen))


def _loop(args: argparse.Namespace) -> "LoopConfig":
    from dataclasses import replace

    from outrider.training.candidates import CandidateConfig
    from outrider.training.loop import LoopConfig
    from outrider.training.objectives import DFLASH, DSPARK
    from outrider.training.optim import OptimConfig
    from outrider.training.sampler import SamplerConfig

    objective = DSPARK if args.method == "dspark" else DFLASH
    terms = _given({"ce": args.ce, "l1": args.l1, "kl": args.kl, "d_pace": args.d_pace})
    sampler = _given(
        {
            "blocks_per_step": args.blocks_per_step,
            "anchor_share": args.anchor_share,
            "seed": args.seed,
        }
    )
    optim = _given({"lr": args.lr, "muon_lr": args.muon_lr, "muon_rows": args.muon_rows})
    if optim.get("muon_lr") == 0:
        optim["muon_lr"] = None
    times = {"eval_minutes": args.eval_minutes, "held_out_documents": args.held_out_documents}
    return LoopConfig(
        steps=args.steps,
        minutes=args.minutes,
        sampler=SamplerConfig(**sampler),
        optim=OptimConfig(**optim),
        objective=replace(objective, **terms),
        candidates=None if args.all_candidates else CandidateConfig(),
        **_given(times),
    )


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def _stopping(trainer: "Trainer") -> Iterator[None]:
    """The first Ctrl-C asks for a checkpoint and an end, the second ends at once."""

    def ask(*_: object) -> None:
        if trainer.stop_asked:
            raise KeyboardInterrupt
        trainer.stop_asked = True
        sys.stderr.write("\nwriting a checkpoint; Ctrl-C again loses it\n")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _show(console: Console, metrics: "Metrics") -> None:
    if "held_out" in metrics:
        found = metrics["held_out"]
        console.say(
            f"step {found['step']}: acceptance length {found['mean_accept_length']:.3f} on "
            f"{found['documents']} held-out documents"
        )
        return
    console.say(
        f"step {metrics['step']}, {metrics['seconds']:.0f} s: loss {metrics['loss']:.3f}, "
        f"overlap {' '.join(f'{value:.2f}' for value in metrics['overlap'])}, "
        f"{metrics['slots_per_second']:.0f} slots/s"
    )
