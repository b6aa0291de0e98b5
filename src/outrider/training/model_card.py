"""The model card of a shipped drafter: what it is, where it came from, what it measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.drafters.block.config import BlockConfig
from outrider.drafters.ngram_table_file import TableHeader

_MEGABYTE = 1e6
_MINUTE = 60
_SHORT_HASH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Everything a card says. Facts that nobody recorded are left out of its text."""

    target: str
    target_hash: str
    config: Mapping[str, Any]
    network: BlockConfig | None
    num_parameters: int
    kind: str
    table: TableHeader | None
    table_entries: int
    sizes: Mapping[str, int]
    provenance: Mapping[str, Any]
    calibration: Mapping[str, Any] | None
    data: Mapping[str, int]
    figures: Mapping[str, Any] | None
    licence: str
    notes: tuple[str, ...]


def card_text(card: Card) -> str:
    """Write the card as Markdown."""
    facts = [
        ("target", f"{card.target}, hash `{card.target_hash[:_SHORT_HASH]}`"),
        ("method", f"`{card.config['method']}`"),
        *_network_facts(card),
        *_table_facts(card),
        *_training_facts(card),
        *_calibration_facts(card),
        *(("note", note) for note in card.notes),
        ("licence", card.licence),
    ]
    rows = [f"| {name} | {value} |" for name, value in facts]
    parts = [
        f"# Drafter for {card.target}",
        "Drafts for exactly this target; the target's output is the same with and without it.\n"
        "`--draft auto` finds it.",
        "\n".join(["| | |", "|---|---|", *rows]),
        *_acceptance(card.figures),
    ]
    return "\n\n".join(parts) + "\n"


def _network_facts(card: Card) -> list[tuple[str, str]]:
    net = card.network
    if net is None:
        return []
    heads = []
    if net.markov_rank:
        heads.append(f"{net.markov_type} Markov head of rank {net.markov_rank}")
    if net.has_confidence_head:
        heads.append("confidence head")
    layers = ", ".join(map(str, net.target_layer_ids))
    return [
        (
            "network",
            f"{net.num_layers} layers of width {net.hidden_size} ({net.intermediate_size} inside) "
            f"on target layers {layers}; blocks of {net.block_size}, layout {net.layout}; "
            f"{net.head_size} of {net.vocab_size} tokens can be drafted"
            + "".join(f"; {head}" for head in heads),
        ),
        (
            "network size",
            f"{card.num_parameters / _MEGABYTE:.1f} M parameters stored as {card.kind}, "
            f"{card.sizes['network'] / _MEGABYTE:.1f} MB",
        ),
    ]


def _table_facts(card: Card) -> list[tuple[str, str]]:
    header = card.table
    if header is None:
        return []
    return [
        (
            "n-gram table",
            f"{card.table_entries} contexts of up to {header.max_order} tokens, counted on "
            f"{header.num_tokens} tokens of {header.num_documents} documents; "
            f"{card.sizes['table'] / _MEGABYTE:.1f} MB",
        )
    ]


def _training_facts(card: Card) -> list[tuple[str, str]]:
    facts = []
    counts = [f"{count} {label}" for label, count in card.data.items()]
    digest = str(card.provenance.get("data_hash", ""))[:_SHORT_HASH]
    if counts or digest:
        said = ", ".join(counts) or "text of the target"
        facts.append(("data", f"{said}" + (f"; hash `{digest}`" if digest else "")))
    options = card.provenance.get("options", {})
    if options:
        said = ", ".join(f"{name} {value}" for name, value in _leaves(options))
        facts.append(("recipe", f"`{card.provenance.get('method')}`: {said}"))
    results = card.provenance.get("results", {})
    if "seconds" in results:
        steps = f", {results['step']} steps" if "step" in results else ""
        slots = f", {results['slots']} draft positions seen" if "slots" in results else ""
        minutes = results["seconds"] / _MINUTE
        facts.append(("training time", f"{minutes:.0f} minutes{steps}{slots}"))
    if card.provenance.get("commit"):
        facts.append(("trained at commit", f"`{card.provenance['commit'][:_SHORT_HASH]}`"))
    return facts


def _calibration_facts(card: Card) -> list[tuple[str, str]]:
    if card.calibration is None:
        return []
    temperatures = card.calibration["temperatures"].values()
    said = " and ".join("greedy" if t == 0 else f"temperature {t:g}" for t in temperatures)
    return [("calibration", f"{card.calibration['method']}; fitted to {said}")]


def _leaves(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Options of all levels that are set, without those of the network, which has its own line."""
    leaves: list[tuple[str, Any]] = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            leaves += [] if name == "network" else _leaves(value)
        elif value is not None:
            leaves.append((name, value))
    return leaves


def _acceptance(figures: Mapping[str, Any] | None) -> list[str]:
    if figures is None:
        return ["## Acceptance", "Not measured yet; `outrider eval` measures it."]
    environment = figures.get("environment", {})
    setting = figures.get("setting", {})
    parts = [
        "## Acceptance",
        "Tokens per round, the target's own included (mean over rounds, 95 % interval over "
        f"prompts); drafts of up to {setting.get('draft_len')} tokens, at most "
        f"{setting.get('max_tokens')} tokens per prompt.",
    ]
    for run in figures["runs"]:
        parts.append(f"Temperature {run['temperature']:g}:")
        rows = ["| | prompts | acceptance length | interval | conditional accept rates |"]
        rows.append("|---|---|---|---|---|")
        rows += [_row(name, own) for name, own in run["domains"].items()]
        rows.append(_row("all", run))
        mean = run["mean_accept_length_over_domains"]
        if mean is not None:
            rows.append(f"| mean over domains | | {mean:.2f} | | |")
        if run["num_looping"]:
            rows.append(_row("without looping outputs", run["not_looping"]))
        parts.append("\n".join(rows))
    parts.append(
        f"Measured on {environment.get('cpu')} with the {figures.get('backend')} backend, commit "
        f"`{environment.get('git_commit')}`, {str(environment.get('date'))[:10]}."
    )
    return parts


def _row(name: str, record: Mapping[str, Any]) -> str:
    length, interval = record["mean_accept_length"], record["mean_accept_length_interval"]
    shown = "-" if length is None else f"{length:.2f}"
    spread = "-" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"
    rates = " ".join("-" if r is None else f"{r:.2f}" for r in record["conditional_accept_rates"])
    return f"| {name} | {record['num_prompts']} | {shown} | {spread} | {rates} |"
