"""HTTP request → sampling parameters and prompts."""

from outrider.core.request import SamplingParams, StructuredOutputsParams
from outrider.serving.failures import ApiError
from outrider.serving.protocol import ChatRequest, CompletionRequest, GenerationRequest

COMPLETION_TOKENS = 16
"""What OpenAI's /v1/completions gives when max_tokens is left out."""

# Field of the HTTP request = field of SamplingParams; None means the latter's default.
_SAME = (
    "temperature",
    "top_p",
    "n",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
)


def sampling_params(
    body: ChatRequest | CompletionRequest,
    *,
    room: int,
    most: int,
    form: StructuredOutputsParams | None = None,
) -> SamplingParams:
    """Translate; `room` is what the context leaves for the answer, `form` what tools make of it.

    Raises:
        RequestRejected: A value is out of its range.
        ApiError: Options contradict each other, or ask for more than `most` tokens in all.
    """
    options = {name: value for name in _SAME if (value := getattr(body, name)) is not None}
    options["max_tokens"] = _max_tokens(body, room, most)
    options["stop"] = body.stops
    if body.logit_bias is not None:
        options["logit_bias"] = {int(token): bias for token, bias in body.logit_bias.items()}
    if body.top_k is not None:
        options["top_k"] = max(body.top_k, 0)
    if body.stop_token_ids is not None:
        options["stop_token_ids"] = frozenset(body.stop_token_ids)
    if body.allowed_token_ids is not None:
        options["allowed_token_ids"] = frozenset(body.allowed_token_ids)
    options["logprobs"] = _logprobs(body)
    speculation = body.speculation
    options["max_draft_len"] = speculation.max_draft_len if speculation.enabled else 0
    options["verify_rule"] = speculation.verify_rule
    own = _structure(body)
    if own is not None and form is not None:
        raise ApiError(400, "tool_choice excludes another form of the answer", param="tool_choice")
    options["structured_outputs"] = own or form
    return SamplingParams(**options)


def _max_tokens(body: ChatRequest | CompletionRequest, room: int, most: int) -> int:
    n = body.n or 1
    wanted = body.max_tokens
    if isinstance(body, ChatRequest):
        wanted = body.max_completion_tokens or wanted
        default = max(1, min(room, most // n))
    else:
        default = max(1, min(room, COMPLETION_TOKENS))
    if wanted is None:
        return default
    if n * wanted > most:
        raise ApiError(
            400,
            f"n × max_tokens is {n * wanted}, but this server gives at most {most} per request",
            param="max_tokens",
        )
    return wanted


def _logprobs(body: ChatRequest | CompletionRequest) -> int | None:
    if isinstance(body, CompletionRequest):
        if body.echo and body.logprobs is not None:
            raise ApiError(
                400,
                "echo with logprobs would need the prompt's, which are not computed; leave one out",
                param="echo",
            )
        return body.logprobs
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _structure(body: GenerationRequest) -> StructuredOutputsParams | None:
    """Find what form the answer must have."""
    wanted: dict[str, StructuredOutputsParams] = {}
    form = body.response_format
    if form is not None and form.type == "json_object":
        wanted["response_format"] = StructuredOutputsParams(json_object=True)
    if form is not None and form.type == "json_schema":
        if form.json_schema is None:
            raise ApiError(400, "json_schema is missing", param="response_format")
        wanted["response_format"] = StructuredOutputsParams(json=form.json_schema.schema_)
    if (given := body.structured_outputs) is not None:
        wanted["structured_outputs"] = StructuredOutputsParams(
            json=given.json_,
            json_object=bool(given.json_object),
            regex=given.regex,
            choice=None if given.choice is None else tuple(given.choice),
            grammar=given.grammar,
        )
    if body.regex is not None:
        wanted["regex"] = StructuredOutputsParams(regex=body.regex)
    if body.choice is not None:
        wanted["choice"] = StructuredOutputsParams(choice=tuple(body.choice))
    if body.grammar is not None:
        wanted["grammar"] = StructuredOutputsParams(grammar=body.grammar)
    if len(wanted) > 1:
        names = " and ".join(wanted)
        raise ApiError(400, f"{names} exclude each other; give one", param=names.split()[-1])
    return next(iter(wanted.values()), None)
