"""LLM: prompts in, texts out. The offline face of the engine."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from outrider.core.calibration import Calibration
from outrider.core.ids import BlockId, RequestId
from outrider.core.outcome import FinishReason
from outrider.core.request import Request, SamplingParams
from outrider.drafters.base import Drafter
from outrider.drafters.block.checkpoint import BlockCheckpoint
from outrider.drafters.block.runner import BlockRunner
from outrider.drafters.config import SpeculativeConfig
from outrider.drafters.shipped import calibration_of
from outrider.engine.backend import LoadedModel, ScoringTarget
from outrider.engine.config import EngineConfig
from outrider.engine.continuation import Running, chunk_of, continuation_seed
from outrider.engine.engine import Engine
from outrider.engine.output import RequestOutput, StreamChunk
from outrider.engine.prompt import Prompt, as_list
from outrider.engine.report import Delta
from outrider.engine.resolve import EnginePlan, build, resolve
from outrider.engine.scheduling import CalibratedFor, calibration_in_use
from outrider.engine.surroundings import drafter_name, model_name
from outrider.errors import ConfigError, RequestFailed, RequestRejected, unknown_name
from outrider.models.spec import ModelSpec
from outrider.models.tokenizer import Tokenizer
from outrider.sampling.noise import Purpose, mix
from outrider.tensor.shapes import Logits
from outrider.tensor.span import Span

_OF_THE_WEIGHTS = ("backend", "weights", "dtype", "device", "threads")


class LLM:
    """A loaded model with its engine.

    >>> llm = LLM("smollm2-135m", speculative_config={"method": "suffix"})
    >>> llm.generate("Once upon a time", SamplingParams(max_tokens=32))[0].outputs[0].text
    """

    def __init__(
        self,
        model: str,
        *,
        speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Load `model`; `options` are the fields of `EngineConfig`.

        Raises:
            ConfigError: An option is unknown or cannot work.
            ModelError: The checkpoint or the drafter cannot be used.
        """
        speculative_config = _speculative(speculative_config)
        known = set(EngineConfig.__dataclass_fields__) - {"model", "speculative"}
        for name in options:
            if name not in known:
                raise ConfigError(unknown_name("engine option", name, known))
        plan = resolve(EngineConfig(model=model, speculative=speculative_config, **options))
        self._start(plan, plan.backend.load(plan.checkpoint))

    def _start(self, plan: EnginePlan, model: LoadedModel, drafter: Drafter | None = None) -> None:
        self.config = plan.config
        self._plan = plan
        self._model = model
        self.engine: Engine = build(plan, model, drafter)
        self.tokenizer: Tokenizer = plan.checkpoint.tokenizer
        self.spec: ModelSpec = plan.checkpoint.spec
        self._num_requests = 0
        self._running: dict[RequestId, Running] = {}

    def sibling(
        self,
        *,
        speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
        drafter: Drafter | None = None,
        **options: Any,
    ) -> Self:
        """Make another engine over the same loaded weights, with a KV cache of its own.

        It speculates as `speculative_config` says, or with a `drafter` of the caller's, by default
        not at all; `options` replace fields of this engine's config. A trace is written by this
        engine alone, unless they name a file.

        Raises:
            ConfigError: An option is unknown, cannot work, or would need other weights; or there
                are two drafters.
            ModelError: The drafter cannot be used.
        """
        if drafter is not None and speculative_config is not None:
            raise ConfigError("a drafter and a speculative_config exclude each other; give one")
        speculative_config = _speculative(speculative_config)
        known = set(EngineConfig.__dataclass_fields__) - {"model", "speculative", *_OF_THE_WEIGHTS}
        for name in options:
            if name not in known:
                raise ConfigError(unknown_name("option of a sibling engine", name, known))
        config = replace(
            self.config, **{"speculative": speculative_config, "trace": None, **options}
        )
        other = object.__new__(type(self))
        plan = resolve(config, self._plan.checkpoint, self._plan.backend, self._plan.grammars)
        other._start(plan, self._model, drafter)
        return other

    @property
    def precision(self) -> str:
        """Dtype whose rounding explains a numeric tie between two runs; "exact": nothing does."""
        return self._plan.backend.precision

    @property
    def backend(self) -> str:
        """What computes the forwards: torch or native."""
        return self._plan.backend.name

    @property
    def scheduling_names(self) -> tuple[str, str] | None:
        """Names of target and drafter that calibrations are made for; None without a drafter."""
        if self.config.speculative is None:
            return None
        drafter = drafter_name(self.config.speculative, self.engine.max_draft_len)
        return model_name(self._plan.checkpoint), drafter

    @property
    def calibration(self) -> Calibration | None:
        """The calibration that is named or shipped for the drafter, also where no policy uses it.

        Raises:
            ConfigError: The one that is named cannot be used.
        """
        names, speculative = self.scheduling_names, self.config.speculative
        if names is None or speculative is None:
            return None
        around = CalibratedFor(*names, self.engine.max_draft_len, calibration_of(speculative))
        return calibration_in_use(self.config, around)

    def new_target(self, num_tokens: int) -> ScoringTarget:
        """Make a bare target over the same loaded weights, with KV blocks for `num_tokens`."""
        num_blocks = -(-num_tokens // self.config.block_size)
        return self._model.new_target(num_blocks, self.config.block_size)

    def new_block_runner(self, drafter: BlockCheckpoint, num_tokens: int) -> BlockRunner:
        """Put a bare block drafter beside the weights, with context for `num_tokens`."""
        num_blocks = -(-num_tokens // self.config.block_size)
        return self._model.new_block_runner(drafter, num_blocks, self.config.block_size)

    def score_tokens(self, prompt: Sequence[int], continuation: Sequence[int]) -> Logits:
        """Score a given continuation in one forward that shares nothing with the engine's cache.

        Row i holds the raw logits after `prompt` and the first i tokens of `continuation`: it
        predicts `continuation[i]`. Both need at least one token.
        """
        tokens = [*prompt, *continuation[:-1]]
        target = self.new_target(len(tokens))
        blocks = [BlockId(i) for i in range(-(-len(tokens) // self.config.block_size))]
        span = Span(tokens, kv_len=0, block_table=blocks, num_judged=len(continuation))
        return target.score_spans([span]).logits

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Generate for one prompt or many; the outputs are in the order of the prompts.

        Raises:
            RequestRejected: A prompt or an option cannot be served; nothing was run.
            RequestFailed: A request failed while running; the others were finished first.
        """
        running = self._submit(prompts, sampling_params)
        for _ in self._run(running):
            pass
        return self._outputs(running)

    def stream(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: SamplingParams | None = None
    ) -> Generator[tuple[int, StreamChunk], None, None]:
        """Generate and yield (prompt index, chunk) as tokens come.

        Closing the iterator early aborts what is left. The texts of a continuation's chunks add up
        to exactly the text that `generate` returns.
        """
        running = self._submit(prompts, sampling_params)
        for delta in self._run(running):
            request = running[delta.request_id].request
            yield request.group, chunk_of(request, delta)
        self._raise_failures(running)

    def generate_from(
        self, source: Callable[[], tuple[Prompt, SamplingParams] | None]
    ) -> Generator[tuple[int, RequestOutput], None, None]:
        """Pull requests from `source` as there is room; yield (number, output) as each ends.

        Requests are numbered from 0 as they are pulled. `source` gives None when it has none just
        now; it is asked again after every step, so an output may lead to the next prompt.
        Closing the iterator early aborts what is left.

        Raises:
            RequestRejected: A prompt or an option cannot be served.
            RequestFailed: A request failed while running.
        """
        pulled: dict[int, dict[RequestId, Running]] = {}
        number = 0
        try:
            while True:
                while len(pulled) < 2 * self.config.max_num_seqs and (one := source()) is not None:
                    pulled[number] = self._submit([one[0]], one[1])
                    self._running |= pulled[number]
                    number += 1
                if not pulled:
                    return
                self._step()
                ended = [n for n, own in pulled.items() if _has_ended(own)]
                for n in ended:
                    own = pulled.pop(n)
                    self._abort(own)
                    yield n, self._outputs(own)[0]
        finally:
            for own in pulled.values():
                self._abort(own)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
    ) -> RequestOutput:
        """Answer one conversation through the model's chat template."""
        return self.generate([self.chat_prompt(messages)], sampling_params)[0]

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Render a conversation and tokenize it; the template writes the special tokens itself."""
        return self.tokenizer.encode_chat(messages)

    def _submit(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> dict[RequestId, Running]:
        """Queue all continuations of all prompts, or none if one is refused."""
        listed = as_list(prompts)
        if isinstance(sampling_params, Sequence):
            params = list(sampling_params)
        else:
            params = [sampling_params or SamplingParams()] * len(listed)
        if len(params) != len(listed):
            raise RequestRejected(
                f"{len(listed)} prompts came with {len(params)} sampling params; give one or each"
            )
        running: dict[RequestId, Running] = {}
        try:
            for group, (prompt, own) in enumerate(zip(listed, params, strict=True)):
                for request in self.new_requests(prompt, own, group):
                    text = prompt if isinstance(prompt, str) else None
                    sequence = self.engine.add(request)
                    running[request.id] = Running(text, request, sequence, time.perf_counter())
        except BaseException:
            self._abort(running)
            raise
        return running

    def _tokens(self, prompt: Prompt) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            return tuple(prompt)
        try:
            return tuple(self.tokenizer.encode(prompt))
        except TypeError as error:  # A lone surrogate has no UTF-8.
            raise RequestRejected(f"the prompt cannot be tokenized: {error}") from error

    def new_requests(self, prompt: Prompt, params: SamplingParams, group: int = 0) -> list[Request]:
        """Make the requests of all `n` continuations of a prompt, with ids and seeds of their own.

        Raises:
            RequestRejected: The prompt cannot be tokenized.
        """
        tokens = self._tokens(prompt)
        return [self._request(tokens, params, group, index) for index in range(params.n)]

    def _request(
        self, tokens: tuple[int, ...], params: SamplingParams, group: int, index: int
    ) -> Request:
        number = self._num_requests
        self._num_requests += 1
        if params.seed is not None:
            seed = continuation_seed(params.seed, index)
        else:
            seed = mix(Purpose.SEED, self.config.seed, number, index)
        return Request(RequestId(f"request-{number}"), tokens, params, seed, group, index)

    def _run(self, running: Mapping[RequestId, Running]) -> Iterator[Delta]:
        """Step until all of `running` ended; abort what is left if the consumer stops early."""
        self._running |= running
        try:
            while True:
                for one in running.values():
                    while one.inbox:
                        yield one.inbox.pop(0)
                # Another call may have stepped the engine while this one was suspended above.
                if any(one.inbox for one in running.values()):
                    continue
                if _has_ended(running):
                    return
                self._step()
        finally:
            self._abort(running)

    def _step(self) -> None:
        """Step the engine once and hand out what all calls gained."""
        report = self.engine.step()
        now = time.perf_counter()
        for delta in report.deltas:
            if delta.request_id in self._running:
                self._running[delta.request_id].see(delta, now)

    def _abort(self, running: Mapping[RequestId, Running]) -> None:
        for request_id in running:
            self.engine.abort(request_id)
            self._running.pop(request_id, None)

    def _outputs(self, running: Mapping[RequestId, Running]) -> list[RequestOutput]:
        self._raise_failures(running)
        outputs: dict[int, RequestOutput] = {}
        for one in running.values():
            ids = list(one.request.prompt)
            group = outputs.setdefault(one.request.group, RequestOutput(one.prompt, ids, []))
            group.outputs.append(one.completion())
        return [outputs[group] for group in sorted(outputs)]

    @staticmethod
    def _raise_failures(running: Mapping[RequestId, Running]) -> None:
        for one in running.values():
            finish = one.sequence.finish
            if finish is not None and finish.reason is FinishReason.ERROR:
                raise RequestFailed(
                    f"prompt {one.request.group} failed after {one.sequence.num_output} tokens: "
                    f"{finish.detail}"
                )


def _speculative(config: SpeculativeConfig | Mapping[str, Any] | None) -> SpeculativeConfig | None:
    if config is None or isinstance(config, SpeculativeConfig):
        return config
    if isinstance(config, Mapping):
        return SpeculativeConfig.from_options(config)
    raise ConfigError(
        f"speculative_config is {config!r}; give a mapping such as {{'method': 'suffix'}}"
    )


def _has_ended(running: Mapping[RequestId, Running]) -> bool:
    return all(one.sequence.is_finished for one in running.values())
