"""HTTP request → job: prompts, parameters, ticket, and how the answer is written."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.core.request import Request
from outrider.engine.prompt import Prompt
from outrider.errors import RequestRejected, UnsupportedModel
from outrider.models.tokenizer import LONG_TEXT
from outrider.serving.choice import Choice
from outrider.serving.driver import Driver
from outrider.serving.failures import ApiError
from outrider.serving.formats import ChatFormat, CompletionFormat, Format
from outrider.serving.logprobs import TokenWords
from outrider.serving.options import sampling_params
from outrider.serving.protocol import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    TokenizeRequest,
)
from outrider.serving.settings import ServeSettings
from outrider.serving.ticket import Ticket
from outrider.serving.tool_use import ToolUse, tool_use
from outrider.serving.tools import messages_for_template
from outrider.serving.usage import speculation_record, usage_record

_TEMPLATE_OWN = frozenset({"messages", "add_generation_prompt", "tools"})
_LENGTH_OF_MESSAGE = 100
"""Characters whose rendering takes as long as a message without any."""


@dataclass(slots=True)
class Job:
    """One HTTP request on its way."""

    driver: Driver
    ticket: Ticket
    choices: Sequence[Choice]
    prompt_lens: Sequence[int]
    format: Format
    is_stream: bool
    has_usage: bool
    keep_alive_seconds: float

    def totals(self) -> dict[str, Any]:
        """Give token counts and acceptance, once every choice has ended."""
        ends = [choice.end for choice in self.choices if choice.end is not None]
        longest = self.driver.llm.engine.max_draft_len
        return {
            "usage": usage_record(self.prompt_lens, ends),
            "metrics": {"speculative_decoding": speculation_record(ends, longest)},
        }


class Service:
    """What the routes do, without HTTP."""

    def __init__(self, driver: Driver, settings: ServeSettings) -> None:
        """Serve the driver's model."""
        self.driver = driver
        self.settings = settings
        self.model = settings.served_model_name or str(driver.llm.config.model)
        self.tokenizer = driver.llm.tokenizer
        self.started = int(time.time())
        self._words = TokenWords(self.tokenizer)
        cache = driver.llm.engine.cache
        self.max_model_len = min(
            driver.llm.engine.max_context_len, cache.num_blocks * cache.block_size
        )

    async def chat(self, body: ChatRequest, arrival: float) -> Job:
        """Start a chat completion.

        Raises:
            RequestError: It cannot be served; so do the next methods.
            ApiError: It asks for something this server does not do.
        """
        self.require_model(body.model)
        self._require_places(body.n or 1)
        template = self.tokenizer.chat_template
        use = tool_use(body, None if template is None else template.source)
        extra = body.chat_template_kwargs or {}
        if _TEMPLATE_OWN & extra.keys():
            name = sorted(_TEMPLATE_OWN & extra.keys())[0]
            raise ApiError(
                400, f"{name} has a field of its own; take it out", param="chat_template_kwargs"
            )
        if use is not None:
            extra = {**extra, "tools": use.tools}
        prompt = await self.render(
            body.messages, add_generation_prompt=body.add_generation_prompt, **extra
        )
        is_stream, has_usage = _streaming(body)
        answer = ChatFormat(self.model, self._words, is_stream=is_stream, has_usage=has_usage)
        return await self._start(body, [prompt], answer, arrival, use)

    async def complete(self, body: CompletionRequest, arrival: float) -> Job:
        """Start plain completions of one prompt or several."""
        self.require_model(body.model)
        prompts = _prompts(body.prompt)
        if not prompts:
            raise ApiError(400, "there is no prompt", param="prompt")
        self._require_places(len(prompts) * (body.n or 1))
        tokens = [
            await self.encode(each, add_special_tokens=body.add_special_tokens)
            if isinstance(each, str)
            else list(each)
            for each in prompts
        ]
        echoes = [
            each if isinstance(each, str) else self.tokenizer.decode(each)
            for each in (prompts if body.echo else ())
            for _ in range(body.n or 1)
        ]
        _, has_usage = _streaming(body)
        answer = CompletionFormat(self.model, self._words, echoes, has_usage=has_usage)
        return await self._start(body, tokens, answer, arrival)

    async def tokenize(self, body: TokenizeRequest) -> list[int]:
        """Give the tokens of a text or a conversation."""
        self.require_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give a prompt or messages, one of them", param="prompt")
        if body.messages is not None:
            return await self.render(
                body.messages, add_generation_prompt=body.add_generation_prompt
            )
        assert body.prompt is not None
        return await self.encode(body.prompt, add_special_tokens=body.add_special_tokens)

    def detokenize(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Give the text of tokens."""
        for token in tokens:
            if token >= self.driver.llm.spec.vocab_size:
                raise ApiError(
                    400,
                    f"token {token} is outside the vocabulary of "
                    f"{self.driver.llm.spec.vocab_size} ids",
                    param="tokens",
                )
        return self.tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokenize a text."""
        if len(text) < LONG_TEXT:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(
            self.tokenizer.encode, text, add_special_tokens=add_special_tokens
        )

    async def render(self, messages: Sequence[ChatMessage], /, **extra: Any) -> list[int]:
        """Tokenize a conversation through the chat template."""
        known = messages_for_template([message.for_template() for message in messages])
        length = sum(_LENGTH_OF_MESSAGE + len(str(message)) for message in known)
        try:
            if length < LONG_TEXT:
                return self.tokenizer.encode_chat(known, **extra)
            return await asyncio.to_thread(self.tokenizer.encode_chat, known, **extra)
        # Half a character, from a field whose text nobody reads, or a name no template can have.
        except TypeError as error:
            raise RequestRejected(f"the conversation cannot be tokenized: {error}") from error
        except UnsupportedModel as error:
            raise ApiError(
                400, f"{self.model} has no chat template; use /v1/completions", param="messages"
            ) from error

    def require_model(self, name: str | None) -> None:
        """Refuse a model that is not served here."""
        if name is not None and name != self.model:
            raise ApiError(
                404,
                f"the model {name!r:.100} is not served here; there is {self.model!r}",
                param="model",
                code="model_not_found",
            )

    def _require_places(self, count: int) -> None:
        """Refuse more continuations than are ever served, before work is done for them."""
        if count > self.driver.capacity:
            raise ApiError(
                400,
                f"{count} continuations were asked for, but at most "
                f"{self.driver.capacity} are served at a time; lower n",
                param="n",
            )

    async def _start(
        self,
        body: ChatRequest | CompletionRequest,
        prompts: Sequence[list[int]],
        answer: Format,
        arrival: float,
        use: ToolUse | None = None,
    ) -> Job:
        requests: list[Request] = []
        for group, prompt in enumerate(prompts):
            requests += self._requests(body, prompt, (group, len(prompts)), use)
        if requests[0].params.structured_outputs is not None:
            # A form is compiled when it is first checked, which may take a while.
            await asyncio.to_thread(self.driver.llm.engine.check, requests[0])
        is_stream, has_usage = _streaming(body)
        return Job(
            driver=self.driver,
            ticket=self.driver.submit(requests, arrival),
            choices=[
                Choice(
                    index,
                    request,
                    self.tokenizer,
                    has_origins=body.return_token_origins,
                    tools=None if use is None else use.new_parser(),
                    max_calls=None if use is None else use.max_calls,
                )
                for index, request in enumerate(requests)
            ],
            prompt_lens=[len(prompt) for prompt in prompts],
            format=answer,
            is_stream=is_stream,
            has_usage=has_usage,
            keep_alive_seconds=self.settings.keep_alive_seconds,
        )

    def _requests(
        self,
        body: ChatRequest | CompletionRequest,
        prompt: Prompt,
        place: tuple[int, int],
        use: ToolUse | None,
    ) -> list[Request]:
        """Make the requests of one prompt; `place` is its number and how many there are."""
        group, num_prompts = place
        if not prompt:
            raise RequestRejected("the prompt is empty; it needs at least one token")
        most = max(1, self.settings.max_total_tokens // num_prompts)
        room = self.max_model_len - len(prompt)
        form = None if use is None else use.form
        params = sampling_params(body, room=room, most=most, form=form)
        return self.driver.llm.new_requests(prompt, params, group)


def _streaming(body: GenerationRequest) -> tuple[bool, bool]:
    """Whether to stream, and whether the stream ends with token counts."""
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream: true", param="stream_options")
    return bool(body.stream), bool(body.stream_options and body.stream_options.include_usage)


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    tokens: list[int] = []
    listed: list[str | list[int]] = []
    for each in prompt:
        if isinstance(each, int):
            tokens.append(each)
        else:
            listed.append(each)
    return [tokens] if tokens else listed
