"""How predictable a target's own text is, before anything is drafted.

The target writes, plainly; one forward over each finished text then gives, for every token of the
output, the distribution p it was taken from (raw logits, temperature 1):

    entropy H = -sum p ln p (nats)      top-1 probability p1 = max p      surprise = -ln p(token)

A token with p1 above 0.9 is called certain. Ceilings say how many tokens per round drafting could
yield on this text: of copying, measured by replaying the drafters; of guessing exactly the certain
tokens; and of a drafter that is right with chance p1 at every token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from outrider.analysis.closed_loop import Completed, jobs_of, run_jobs
from outrider.analysis.prompts import PromptRow
from outrider.analysis.replay import replay
from outrider.core.acceptance import Acceptance, total
from outrider.core.loops import loop_start
from outrider.core.request import SamplingParams
from outrider.drafters.base import Drafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.llm import LLM
from outrider.tensor.shapes import Logits

CERTAIN = 0.9
COPY_LEN = 4
_ROWS_AT_ONCE = 32

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeSetting:
    """What is run. `draft_len` is the longest draft the ceilings assume."""

    concurrency: int = 8
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    raw: bool = False
    draft_len: int = 7


@dataclass(frozen=True, slots=True)
class Text:
    """One output with its numbers, one of each per token. `copying` counts by copying drafter."""

    id: str
    domain: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    entropies: tuple[float, ...]
    top_probs: tuple[float, ...]
    surprises: tuple[float, ...]
    copying: dict[str, Acceptance]

    @property
    def is_looping(self) -> bool:
        """Whether it ends in a loop."""
        return loop_start(self.tokens) is not None

    @property
    def certain_runs(self) -> list[int]:
        """Lengths of the stretches of consecutive certain tokens."""
        lengths, length = [], 0
        for prob in (*self.top_probs, 0.0):
            if prob > CERTAIN:
                length += 1
            elif length:
                lengths.append(length)
                length = 0
        return lengths

    @property
    def copied(self) -> int:
        """Tokens that lie in a passage of COPY_LEN or more that the prompt has as well."""
        return _covered(self.tokens, _passages(self.prompt))

    @property
    def repeated(self) -> int:
        """Tokens that lie in a passage of COPY_LEN or more that the output had before."""
        seen: set[tuple[int, ...]] = set()
        marked: set[int] = set()
        for start in range(len(self.tokens) - COPY_LEN + 1):
            passage = self.tokens[start : start + COPY_LEN]
            if passage in seen:
                marked.update(range(start, start + COPY_LEN))
            seen.add(passage)
        return len(marked)


@dataclass(frozen=True, slots=True)
class Predictability:
    """All outputs."""

    setting: AnalyzeSetting
    texts: tuple[Text, ...]

    @property
    def domains(self) -> list[str]:
        """Names of the domains, in the order of the prompts."""
        return list(dict.fromkeys(text.domain for text in self.texts))

    def of_domain(self, name: str) -> "Predictability":
        """Keep one domain."""
        return self.only(lambda text: text.domain == name)

    def only(self, keep: Callable[[Text], bool]) -> "Predictability":
        """Keep some of the outputs."""
        return Predictability(self.setting, tuple(text for text in self.texts if keep(text)))


def analyze(
    llm: LLM,
    rows: Sequence[PromptRow],
    setting: AnalyzeSetting,
    on_progress: OnProgress = lambda _what, _done, _all: None,
) -> Predictability:
    """Let `llm`, which must not speculate, continue the prompts, and look at every token.

    Raises:
        RequestError: A prompt cannot be served or failed.
    """
    assert llm.config.speculative is None
    params = SamplingParams(
        temperature=setting.temperature, max_tokens=setting.max_tokens, seed=setting.seed
    )
    jobs = jobs_of(llm, rows, params, raw=setting.raw)
    done = 0

    def count(_: Completed) -> None:
        nonlocal done
        done += 1
        on_progress("outputs written", done, len(jobs))

    outputs = run_jobs(llm, jobs, concurrency=setting.concurrency, on_done=count)
    texts = []
    for number, output in enumerate(outputs, start=1):
        texts.append(_text(llm, output, setting.draft_len))
        on_progress("outputs read", number, len(outputs))
    return Predictability(setting, tuple(texts))


def _text(llm: LLM, output: Completed, draft_len: int) -> Text:
    prompt, tokens = output.job.prompt, tuple(output.tokens)
    entropies, top_probs, surprises = numbers_of(llm.score_tokens(prompt, tokens), tokens)
    drafters: dict[str, Drafter] = {
        "ngram": NgramDrafter(draft_len, min_len=1, max_len=4),
        "suffix": SuffixDrafter(draft_len, min_survival=0.1, shared=None),
    }
    copying = {name: replay(drafter, prompt, tokens) for name, drafter in drafters.items()}
    job = output.job
    return Text(job.id, job.domain, prompt, tokens, entropies, top_probs, surprises, copying)


Floats = tuple[float, ...]


def numbers_of(logits: Logits, tokens: Sequence[int]) -> tuple[Floats, Floats, Floats]:
    """Give entropy, top-1 probability and surprise of each token, computed in float64."""
    entropies: list[float] = []
    top_probs: list[float] = []
    surprises: list[float] = []
    for start in range(0, len(tokens), _ROWS_AT_ONCE):
        rows = logits[start : start + _ROWS_AT_ONCE].to(torch.float64)
        logprobs = rows.log_softmax(dim=-1)
        probs = logprobs.exp()
        # A masked token has probability 0 and logarithm -inf; its share of the entropy is 0.
        shares = torch.where(probs > 0, probs * logprobs, 0.0)
        own = torch.tensor(tokens[start : start + _ROWS_AT_ONCE], device=rows.device)
        entropies += (-shares.sum(dim=-1)).clamp_min(0.0).tolist()
        top_probs += probs.amax(dim=-1).tolist()
        surprises += (-logprobs.gather(-1, own[:, None])[:, 0]).tolist()
    return tuple(entropies), tuple(top_probs), tuple(surprises)


def _passages(tokens: Sequence[int]) -> set[tuple[int, ...]]:
    return {tuple(tokens[i : i + COPY_LEN]) for i in range(len(tokens) - COPY_LEN + 1)}


def _covered(tokens: tuple[int, ...], passages: set[tuple[int, ...]]) -> int:
    marked: set[int] = set()
    for start in range(len(tokens) - COPY_LEN + 1):
        if tokens[start : start + COPY_LEN] in passages:
            marked.update(range(start, start + COPY_LEN))
    return len(marked)


def certain_length(texts: Sequence[Text], draft_len: int) -> float:
    """Tokens per round of drafting exactly the certain tokens that come next, `draft_len` at most.

    0 where there is no token.
    """
    tokens = rounds = 0
    for text in texts:
        position = 0
        while position < len(text.tokens):
            ahead = text.top_probs[position : position + draft_len]
            accepted = next((i for i, p in enumerate(ahead) if p <= CERTAIN), len(ahead))
            position += accepted + 1
            rounds += 1
        tokens += len(text.tokens)
    return tokens / rounds if rounds else 0.0


def survivals(texts: Sequence[Text], draft_len: int) -> list[float]:
    """Chance that a drafter right with chance p1 is right this often in a row, from any token on.

    Entry i is for i + 1 tokens; positions from which the text is shorter are left out.
    """
    sums, counts = [0.0] * draft_len, [0] * draft_len
    for text in texts:
        for start in range(len(text.top_probs)):
            chance = 1.0
            for length, prob in enumerate(text.top_probs[start : start + draft_len]):
                chance *= prob
                sums[length] += chance
                counts[length] += 1
    return [each / count if count else 0.0 for each, count in zip(sums, counts, strict=True)]


def copying_length(texts: Sequence[Text], drafter: str) -> float | None:
    """Tokens per round of a drafter that copies, replayed on the texts; None without a token."""
    counts = total([text.copying[drafter] for text in texts])
    return counts.acceptance_length if counts.rounds else None
