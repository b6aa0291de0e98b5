"""Turns of two engines that decode the same prompts: kept on disk, compared, shown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.analysis.bootstrap import LEVEL, Resamples
from outrider.analysis.tables import table

OURS, THEIRS = "outrider", "llama.cpp"
PLAIN = "plain"
RESAMPLES = 2000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt, decoded once in one way."""

    tokens: list[int]
    read_seconds: float
    """Until the first token was there."""
    decode_seconds: float
    """From then to the last one."""
    rounds: int
    drafted: int
    accepted: int
    own_seconds: float | None = None
    """Of `decode_seconds`, those outside llama.cpp's forwards; None for Outrider."""
    surplus_seconds: float | None = None
    """Processor time of all threads but the busiest, as many as the engines may use: what a pool
    that does not sleep took away. None where it is not known."""


@dataclass(frozen=True, slots=True)
class Departure:
    """Where an output leaves plain decoding's. In llama.cpp a row's numbers depend a little on how
    many rows are computed with it, so that near ties can go either way.
    """

    position: int
    margin: float | None
    """Logit of plain's own token less that of the other, read in one forward; None: not known."""


@dataclass(frozen=True, slots=True)
class PromptTurns:
    """A prompt's turns by side. A side is named `engine way`."""

    id: str
    domain: str
    num_prompt_tokens: int
    turns: dict[str, Turn]
    same_ids: bool
    """Whether llama.cpp's tokenizer makes the same ids of the prompt's text."""
    left_plain: dict[str, Departure]
    """Sides whose output is not that of their engine's plain decoding."""

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "PromptTurns":
        """Read what `asdict` gave."""
        turns = {name: Turn(**turn) for name, turn in record["turns"].items()}
        left = {name: Departure(**one) for name, one in record["left_plain"].items()}
        return cls(**{**record, "turns": turns, "left_plain": left})


class Log:
    """Prompts done so far, on disk a line each; without a path nothing is kept.

    The first line says what they were made with.
    """

    def __init__(self, path: Path | None, key: Mapping[str, Any]) -> None:
        """Read what is there; turns made with other options are refused."""
        self._path, self._key = path, json.loads(json.dumps(key))
        self.ways: dict[str, dict[str, Any]] | None = None
        self.done: dict[str, PromptTurns] = {}
        if path is None or not path.exists():
            return
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        if lines and lines[0]["key"] != self._key:
            raise SystemExit(f"{path} holds turns made with other options; name another file")
        if lines:
            self.ways = lines[0]["ways"]
        for line in lines[1:]:
            turns = PromptTurns.from_json(line)
            self.done[turns.id] = turns

    def ways_of(self, domain: str) -> dict[str, Any]:
        """Give the ways chosen for a domain, or for the first one if none was tried for it."""
        assert self.ways
        return self.ways.get(domain) or next(iter(self.ways.values()))

    def begin(self, ways: dict[str, dict[str, Any]]) -> None:
        """Keep the ways llama.cpp was chosen to draft in, by domain."""
        self.ways = ways
        self._append({"key": self._key, "ways": ways})

    def add(self, turns: PromptTurns) -> None:
        """Keep a prompt."""
        self.done[turns.id] = turns
        self._append(asdict(turns))

    def _append(self, entry: Mapping[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens per second of every side over some prompts, and in every resample of them."""

    sides: tuple[str, ...]
    overall: Floats
    resampled: Floats
    """A row per resample, a column per side."""

    @classmethod
    def of(cls, prompts: Sequence[PromptTurns], *, with_reading: bool) -> "Speeds":
        """Divide sums by sums. Without reading, the first token is not counted either."""
        sides = tuple(prompts[0].turns)
        tokens, seconds = np.zeros((2, len(prompts), len(sides)))
        for row, prompt in enumerate(prompts):
            for column, side in enumerate(sides):
                turn = prompt.turns[side]
                tokens[row, column] = len(turn.tokens) - (not with_reading)
                read = turn.read_seconds if with_reading else 0.0
                seconds[row, column] = turn.decode_seconds + read
        domains = [prompt.domain for prompt in prompts]
        weights = Resamples.draw(domains, num=RESAMPLES, seed=0).weights
        resampled = (weights @ tokens) / (weights @ seconds)
        return cls(sides, tokens.sum(0) / seconds.sum(0), resampled)

    def speed(self, side: str) -> float:
        """Tokens per second of a side."""
        return float(self.overall[self.sides.index(side)])

    @property
    def best_of_theirs(self) -> str:
        """The fastest way of llama.cpp on these prompts, chosen after the fact."""
        return max((s for s in self.sides if s.startswith(THEIRS)), key=self.speed)

    def ratio(self, side: str) -> tuple[float, float, float]:
        """Speed of a side over the best of llama.cpp's, with the interval; each resample has its
        own best.
        """
        theirs = [i for i, name in enumerate(self.sides) if name.startswith(THEIRS)]
        ratios = self.resampled[:, self.sides.index(side)] / self.resampled[:, theirs].max(1)
        low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return self.speed(side) / self.speed(self.best_of_theirs), float(low), float(high)


def speed_of(turns: Sequence[Turn]) -> float:
    """Tokens per second after the first."""
    return sum(len(turn.tokens) - 1 for turn in turns) / sum(turn.decode_seconds for turn in turns)


def comparison(prompts: Sequence[PromptTurns]) -> dict[str, Any]:
    """Compare all sides over some prompts."""
    record: dict[str, Any] = {"num_prompts": len(prompts)}
    for name, with_reading in (("decoding", False), ("with_reading", True)):
        speeds = Speeds.of(prompts, with_reading=with_reading)
        record[name] = {
            "tokens_per_second": {side: speeds.speed(side) for side in speeds.sides},
            "best_of_llamacpp": speeds.best_of_theirs,
            "ratio": {s: speeds.ratio(s) for s in speeds.sides if s.startswith(OURS)},
        }
    return record


def side_record(prompts: Sequence[PromptTurns], side: str) -> dict[str, Any]:
    """What a side drafted, whether it left its engine's plain output, and what disturbed it."""
    turns = [prompt.turns[side] for prompt in prompts]
    left = {p.id: asdict(p.left_plain[side]) for p in prompts if side in p.left_plain}
    rounds, drafted = (sum(getattr(turn, name) for turn in turns) for name in ("rounds", "drafted"))
    decoding = sum(turn.decode_seconds for turn in turns)
    own = [turn.own_seconds for turn in turns if turn.own_seconds is not None]
    surplus = [turn.surplus_seconds for turn in turns if turn.surplus_seconds is not None]
    return {
        "tokens": sum(len(turn.tokens) for turn in turns),
        "tokens_per_round": sum(len(turn.tokens) - 1 for turn in turns) / max(rounds, 1),
        "acceptance_rate": sum(turn.accepted for turn in turns) / drafted if drafted else None,
        "num_as_plain": len(turns) - len(left),
        "left_plain": left,
        "share_outside_forwards": sum(own) / decoding if own else None,
        "surplus_threads": sum(surplus) / decoding if surplus else None,
    }


def speed_lines(key: str, title: str, compared: Mapping[str, dict[str, Any]]) -> list[str]:
    """Show the tokens per second of every side by domain, and what they are of the best."""
    own = {name: one[key] for name, one in compared.items()}
    speeds = {name: one["tokens_per_second"] for name, one in own.items()}
    first = next(iter(own.values()))
    body = [
        [side, *(f"{speeds[name][side]:.1f}" for name in own)]
        for side in first["tokens_per_second"]
    ]
    for side in first["ratio"]:
        cells = [one["ratio"][side] for one in own.values()]
        shown = [f"{ratio:.2f} ({low:.2f}, {high:.2f})" for ratio, low, high in cells]
        body.append([f"{side} / best of {THEIRS}", *shown])
    body.append(["best", *(one["best_of_llamacpp"] for one in own.values())])
    return table([[title, *own], *body])


def side_lines(sides: Mapping[str, dict[str, Any]], num_prompts: int) -> list[str]:
    """Show what every side drafted and whether it can be trusted."""

    def percent(share: float | None) -> str:
        return "-" if share is None else f"{share:.2%}"

    head = ["", "tokens/round", "accepted", "as plain", "outside forwards", "surplus threads"]
    body = [
        [
            side,
            f"{own['tokens_per_round']:.2f}",
            percent(own["acceptance_rate"]),
            f"{own['num_as_plain']} of {num_prompts}",
            percent(own["share_outside_forwards"]),
            percent(own["surplus_threads"]),
        ]
        for side, own in sides.items()
    ]
    return table([head, *body])


def report(prompts: Sequence[PromptTurns], ways: Mapping[str, Any]) -> dict[str, Any]:
    """Print tables for people; give the figures."""
    groups = {
        domain: [prompt for prompt in prompts if prompt.domain == domain]
        for domain in dict.fromkeys(prompt.domain for prompt in prompts)
    } | {"all": list(prompts)}
    compared = {name: comparison(group) for name, group in groups.items()}
    sides = {side: side_record(prompts, side) for side in prompts[0].turns}
    blocks = [
        speed_lines("decoding", "tokens/s after the first", compared),
        speed_lines("with_reading", "tokens/s, prompt included", compared),
        side_lines(sides, len(prompts)),
    ]
    for block in blocks:
        print("\n".join(block), end="\n\n")
    for side, own in sides.items():
        for prompt, where in own["left_plain"].items():
            print(f"{side} leaves plain on {prompt}: {where}")
    for domain, chosen in ways.items():
        print(f"options for {domain}: {chosen}")
    same = sum(prompt.same_ids for prompt in prompts)
    print(f"llama.cpp's tokenizer makes the same ids of {same} of {len(prompts)} prompts")
    return {"compared": compared, "sides": sides, "ways": ways, "num_same_ids": same}
