"""Answers by the target to many prompts: tokens, loss masks and features, shard by shard.

A conversation becomes one document. Its tokens are those the target read and wrote, never text that
was tokenized again, so the loss mask (1 on what the target wrote) is exact.
"""

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from outrider.core.request import SamplingParams
from outrider.engine.llm import LLM
from outrider.engine.output import RequestOutput
from outrider.errors import ConfigError
from outrider.sampling.noise import Purpose, mix
from outrider.tensor.shapes import Hidden
from outrider.training.chat_format import ChatFormat
from outrider.training.conversations import Conversation
from outrider.training.loops import length_without_loop
from outrider.training.near_duplicates import NearDuplicates
from outrider.training.settings import GenerateSetting
from outrider.training.shards import DataDirectory, FinishedDocument

_EXCLUDED_OVERLAP = 0.6


@dataclass(slots=True, eq=False)
class _Document:
    """A conversation on its way: `follow_ups` are the texts that lead to its further answers."""

    shard: int
    place: int
    about: Conversation
    params: SamplingParams
    tokens: list[int]
    follow_ups: deque[str]
    loss_mask: list[bool] = field(default_factory=list)
    features: Hidden | None = None
    num_answers: int = 0
    is_cut: bool = False
    is_short_of_room: bool = False

    def take(self, output: RequestOutput) -> None:
        """Append an answer, without the loop it may end in."""
        answer = output.outputs[0]
        kept = length_without_loop(answer.token_ids)
        self.is_cut |= kept < len(answer.token_ids)
        self.loss_mask += [False] * (len(self.tokens) - len(self.loss_mask)) + [True] * kept
        self.tokens += answer.token_ids[:kept]
        self.features = answer.features
        self.num_answers += 1

    def finished(self) -> FinishedDocument:
        greedy = self.params.is_greedy
        written = self.loss_mask.index(True)
        about = {
            "id": self.about.id,
            "domain": self.about.domain,
            "temperature": 0.0 if greedy else self.params.temperature,
            "prompt_len": written,
            "len": len(self.tokens),
            "answers": self.num_answers,
            "answer_tokens": sum(self.loss_mask),
            "cut": self.is_cut,
            "out_of_room": self.is_short_of_room,
        }
        return FinishedDocument(self.tokens, self.loss_mask, about, self.features)


@dataclass(frozen=True, slots=True)
class GeneratePlan:
    """Every document to be made, by shard, and how many conversations were left out and why."""

    shards: tuple[tuple[_Document, ...], ...]
    skipped: Mapping[str, int]

    @property
    def documents(self) -> list[_Document]:
        """All of them, in order."""
        return [document for shard in self.shards for document in shard]

    def digest(self, number: int, setting: GenerateSetting, target_hash: str) -> str:
        """Hash what shard `number` will be made from."""
        content: list[Any] = [asdict(setting), target_hash]
        content += [
            [d.about.id, d.about.domain, d.tokens, list(d.follow_ups), d.params.temperature]
            for d in self.shards[number]
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def planned_documents(
    plan: GeneratePlan, pending: Sequence[int]
) -> list[tuple[Sequence[int], int]]:
    """First prompt and number of answers of every document of these shards."""
    return [
        (document.tokens, 1 + len(document.follow_ups))
        for number in pending
        for document in plan.shards[number]
    ]


def plan_generation(
    llm: LLM,
    conversations: Sequence[Conversation],
    setting: GenerateSetting,
    exclude: Iterable[str] = (),
) -> GeneratePlan:
    """Tokenize every conversation, leave out what cannot be used, and deal them into shards.

    The order is shuffled by the seed, so that each shard is a sample of all. Conversations whose
    first turn nearly repeats a text of `exclude` are left out.

    Raises:
        ConfigError: The chat template cannot be used, or nothing is left.
    """
    form = None if setting.is_raw else ChatFormat.of(llm.tokenizer)
    excluded = NearDuplicates(_EXCLUDED_OVERLAP)
    excluded.add_all(exclude)
    skipped: Counter[str] = Counter()
    order = list(conversations)
    Random(setting.seed).shuffle(order)
    documents: list[_Document] = []
    for one in order:
        tokens, follow_ups = _opening(llm, form, one, setting)
        if len(tokens) + setting.max_tokens > llm.engine.max_context_len:
            skipped["too long"] += 1
        elif not excluded.is_new(one.turns[0]):
            skipped["excluded"] += 1
        else:
            number = len(documents)
            params = _params(setting, number)
            shard, place = divmod(number, setting.shard_documents)
            documents.append(_Document(shard, place, one, params, tokens, follow_ups))
    if not documents:
        raise ConfigError(
            f"none of {len(order)} conversations can be used "
            f"({', '.join(f'{n} {why}' for why, n in skipped.items())}); an answer may have "
            f"{setting.max_tokens} tokens and the context holds {llm.engine.max_context_len}"
        )
    size = setting.shard_documents
    shards = (documents[first : first + size] for first in range(0, len(documents), size))
    return GeneratePlan(tuple(tuple(shard) for shard in shards), dict(skipped))


def _opening(
    llm: LLM, form: ChatFormat | None, one: Conversation, setting: GenerateSetting
) -> tuple[list[int], deque[str]]:
    """Tokens of the first prompt, and what leads from each answer to the next."""
    if form is None:
        return llm.tokenizer.encode(one.turns[0]), deque()
    if setting.history == "keep":
        return llm.chat_prompt(one.messages()), deque()
    return llm.chat_prompt(one.opening()), deque(form.follow_up(turn) for turn in one.turns[1:])


def _params(setting: GenerateSetting, number: int) -> SamplingParams:
    """Sampling of document `number`; greedy ones are spread evenly, whatever the share."""
    share = setting.greedy_share
    is_greedy = int((number + 1) * share) > int(number * share)
    return SamplingParams(
        max_tokens=setting.max_tokens,
        temperature=0.0 if is_greedy else setting.temperature,
        top_p=1.0 if is_greedy else setting.top_p,
        top_k=0 if is_greedy else setting.top_k,
        seed=mix(Purpose.SEED, setting.seed, number),
        skip_special_tokens=False,
    )


@dataclass(frozen=True, slots=True)
class GenerationProgress:
    """How far a run is: documents made by this run, of those it has to make, and answer tokens."""

    num_done: int
    num_documents: int
    num_answer_tokens: int
    num_finished_shards: int


OnProgress = Callable[[GenerationProgress], None]


class Generation:
    """One run over the shards that are not there yet."""

    def __init__(
        self,
        llm: LLM,
        plan: GeneratePlan,
        setting: GenerateSetting,
        directory: DataDirectory,
    ) -> None:
        """Look at what is finished; `llm` records features if its `feature_taps` say so.

        Raises:
            ConfigError: A finished shard is of other prompts or options.
        """
        self.llm = llm
        self._plan, self._setting = plan, setting
        self.directory = directory
        target = directory.manifest.target_hash
        self._digests = [plan.digest(number, setting, target) for number in range(len(plan.shards))]
        self.pending = [
            number
            for number, digest in enumerate(self._digests)
            if not directory.is_finished(number, digest)
        ]
        self.num_documents = sum(len(plan.shards[number]) for number in self.pending)
        self._waiting = deque(d for number in self.pending for d in plan.shards[number])
        self._next_turns: deque[_Document] = deque()
        self._running: list[_Document] = []
        self._left = {number: len(plan.shards[number]) for number in self.pending}

    def run(self, on_progress: OnProgress = lambda _: None) -> dict[str, Any]:
        """Make the missing shards, then the summary, which is returned.

        Interrupted at any point, it leaves whole shards, and another run makes the rest.

        Raises:
            OutputFailed: A shard cannot be written.
            RequestFailed: The target gave logits that are not numbers.
        """
        self.directory.begin()
        num_done = num_answer_tokens = 0
        stream = self.llm.generate_from(self._next_request)
        try:
            for number, output in stream:
                document = self._running[number]
                document.take(output)
                num_answer_tokens += len(output.outputs[0].token_ids)
                if self._goes_on(document):
                    self._next_turns.append(document)
                    continue
                num_done += 1
                self._left[document.shard] -= 1
                if not self._left[document.shard]:
                    self._write(document.shard)
                finished = sum(not left for left in self._left.values())
                on_progress(
                    GenerationProgress(num_done, self.num_documents, num_answer_tokens, finished)
                )
        finally:
            stream.close()
        summary = self._summary()
        self.directory.finish(summary)
        return summary

    def _next_request(self) -> tuple[Sequence[int], SamplingParams] | None:
        """Further turns first: they finish what is already in memory."""
        queue = self._next_turns or self._waiting
        if not queue:
            return None
        document = queue.popleft()
        self._running.append(document)
        return document.tokens, document.params

    def _goes_on(self, document: _Document) -> bool:
        """Append the next turn, if there is one and it fits."""
        if not document.follow_ups:
            return False
        tokens = self._continued(document)
        if len(tokens) + self._setting.max_tokens > self.llm.engine.max_context_len:
            document.is_short_of_room = True
            return False
        document.follow_ups.popleft()
        document.tokens, document.features = tokens, None
        return True

    def _continued(self, document: _Document) -> list[int]:
        """Tokens up to the next answer; the template's end of turn is not written twice."""
        tokenizer = self.llm.tokenizer
        between = tokenizer.encode(document.follow_ups[0], add_special_tokens=False)
        last = document.tokens[-1]
        is_ended = last in self.llm.spec.stop_token_ids and between[:1] == [last]
        return document.tokens + (between[1:] if is_ended else between)

    def _write(self, number: int) -> None:
        """Write a shard and let go of its documents."""
        fewest = self._setting.min_answer_tokens
        kept = [d.finished() for d in self._plan.shards[number] if sum(d.loss_mask) >= fewest]
        self.directory.write(number, self._digests[number], kept)
        for document in self._plan.shards[number]:
            document.features = None

    def _summary(self) -> dict[str, Any]:
        """Count over all shards, those of earlier runs included."""
        about = [
            line
            for number in range(len(self._plan.shards))
            for line in self.directory.about(number)
        ]
        num_planned = len(self._plan.documents)
        skipped = dict(self._plan.skipped) | {"short answer": num_planned - len(about)}
        return {
            "num_shards": len(self._plan.shards),
            "num_documents": len(about),
            "num_tokens": sum(line["len"] for line in about),
            "num_answer_tokens": sum(line["answer_tokens"] for line in about),
            "num_greedy": sum(line["temperature"] == 0 for line in about),
            "num_cut": sum(line["cut"] for line in about),
            "num_out_of_room": sum(line["out_of_room"] for line in about),
            "by_domain": dict(Counter(line["domain"] for line in about)),
            "skipped": {reason: count for reason, count in skipped.items() if count},
        }
