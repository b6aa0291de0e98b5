"""The requests of the HTTP interface: OpenAI's fields, vLLM's extensions and a few of our own.

Unknown fields are refused by name. Fields that have no meaning here are listed as ignored; a field
whose meaning matters and is not supported is refused rather than ignored.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from outrider.core.request import VerifyRule

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256
MAX_N = 128
MAX_TOP_LOGPROBS = 20
MAX_BIASES = 16_384
MAX_FIELDS = 128
MAX_MESSAGES = 4096
MAX_PROMPTS = 2048
_INT64 = 1 << 63


def _encodable(text: str) -> str:
    """Refuse half a character, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"is no Unicode text ({error.reason})") from None
    return text


def _few(given: Any) -> Any:
    """Refuse a long map before each of its keys becomes an error of its own."""
    if isinstance(given, dict) and len(given) > MAX_BIASES:
        raise ValueError(f"has {len(given)} tokens, but at most {MAX_BIASES} are taken")
    return given


T = TypeVar("T")
Many = Annotated[list[T], Field(fail_fast=True)]
"""A list whose first fault is told: one sentence for each of a million takes seconds."""
Text = Annotated[str, AfterValidator(_encodable)]
Seed = Annotated[int, Field(ge=-_INT64, lt=_INT64)]
Count = Annotated[int, Field(ge=0, lt=1 << 31)]
Positive = Annotated[int, Field(ge=1, lt=1 << 31)]
StopString = Annotated[Text, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
StopStrings = Annotated[Many[StopString], Field(max_length=MAX_STOP_STRINGS)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
Biases = Annotated[dict[TokenKey, Bias], BeforeValidator(_few)]


class Strict(BaseModel):
    """Refuses unknown fields, and "5" where 5 is meant."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, given: Any) -> Any:
        """Refuse many fields before each that is unknown becomes an error of its own."""
        if isinstance(given, dict) and len(given) > MAX_FIELDS:
            raise ValueError(f"has {len(given)} fields, but at most {MAX_FIELDS} are read")
        return given


class StreamOptions(Strict):
    """What a stream carries besides text."""

    include_usage: bool = False
    """End with a chunk that has the token counts."""
    include_obfuscation: bool | None = None
    """Ignored: nothing is padded."""


class Speculation(Strict):
    """How one request speculates; what is left out is as the server was started."""

    enabled: bool = True
    max_draft_len: Count | None = None
    """Longest draft; at most the drafter's own."""
    verify_rule: VerifyRule | None = None


class JsonSchema(Strict):
    """A schema by name."""

    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """What form the answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Strict):
    """vLLM's way to say it; exactly one of them."""

    json_: str | dict[str, Any] | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: Text | None = None
    choice: Many[Text] | None = None
    grammar: Text | None = None


class GenerationRequest(Strict):
    """What both kinds of completions take."""

    model: Text | None = None
    max_tokens: Positive | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    stop: StopString | StopStrings | None = None
    seed: Seed | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Biases | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None
    """Ignored."""

    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Count | None = None
    stop_token_ids: Annotated[Many[TokenId], Field(max_length=1024)] | None = None
    allowed_token_ids: Annotated[Many[TokenId], Field(min_length=1)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    regex: Text | None = None
    choice: Many[Text] | None = None
    grammar: Text | None = None

    speculative: bool | Speculation | None = None
    return_token_origins: bool = False
    """Tell for each token whether it was drafted and by whom."""

    @property
    def speculation(self) -> Speculation:
        """The `speculative` field with its short form written out."""
        if isinstance(self.speculative, Speculation):
            return self.speculative
        return Speculation(enabled=self.speculative is not False)

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class TextPart(Strict):
    """A part of a message; only text is understood."""

    type: Literal["text"]
    text: Text


class FunctionCall(Strict):
    """What an earlier answer called."""

    name: str
    arguments: Text


class ToolCall(Strict):
    """A call in an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class ChatMessage(Strict):
    """One message of a conversation."""

    role: Annotated[Text, Field(min_length=1, max_length=64)]
    content: Text | Many[TextPart] | None = None
    name: Text | None = None
    tool_calls: Many[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    """Ignored; clients send back what an answer held. So are the next two."""
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None

    def for_template(self) -> dict[str, Any]:
        """Give it as chat templates know it."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        message: dict[str, Any] = {"role": self.role, "content": content or ""}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            message["tool_calls"] = [
                call.model_dump(include={"id", "type", "function"}) for call in self.tool_calls
            ]
        return message


class Function(Strict):
    """A function the model may call."""

    name: Annotated[Text, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool the model may call."""

    type: Literal["function"]
    function: Function


class ToolName(Strict):
    """A function by name."""

    name: Text


class NamedTool(Strict):
    """The tool that must be called."""

    type: Literal["function"]
    function: ToolName


class ChatRequest(GenerationRequest):
    """Body of /v1/chat/completions."""

    messages: Annotated[Many[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Annotated[Many[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    store: bool | None = None
    """Ignored; so are the next three."""
    reasoning_effort: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True


class CompletionRequest(GenerationRequest):
    """Body of /v1/completions."""

    prompt: (
        Text
        | Annotated[Many[Text], Field(max_length=MAX_PROMPTS)]
        | Many[TokenId]
        | Annotated[Many[Many[TokenId]], Field(max_length=MAX_PROMPTS)]
    )
    best_of: Literal[1] | None = None
    suffix: None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool = False
    add_special_tokens: bool = True


class TokenizeRequest(Strict):
    """Body of /tokenize: a text or a conversation."""

    model: Text | None = None
    prompt: Text | None = None
    messages: Annotated[Many[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = (
        None
    )
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(Strict):
    """Body of /detokenize."""

    model: Text | None = None
    tokens: Many[TokenId]
    skip_special_tokens: bool = False


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every answer that is not 2xx."""

    error: ErrorDetail
