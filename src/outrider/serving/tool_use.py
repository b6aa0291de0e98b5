"""What a chat request says about tools → what the template, the sampler and the parser need."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.core.request import StructuredOutputsParams
from outrider.serving.failures import ApiError
from outrider.serving.protocol import ChatRequest, NamedTool
from outrider.serving.tools import NO_FORMAT, ToolParser, tool_form, tool_parser


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools of one request. `form` is set where a call is demanded; parsers are one per choice."""

    tools: Sequence[Mapping[str, Any]]
    form: StructuredOutputsParams | None
    new_parser: Callable[[], ToolParser | None]
    max_calls: int | None


def tool_use(body: ChatRequest, chat_template: str | None) -> ToolUse | None:
    """Read the request; None where no tool may be called.

    Raises:
        ApiError: The model knows no tools, or the options contradict each other.
        RequestRejected: The tool that must be called is not there.
    """
    choice = body.tool_choice
    if not body.tools:
        if choice not in (None, "none"):
            raise ApiError(400, "tool_choice needs tools", param="tool_choice")
        return None
    if choice == "none":
        return None
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools]
    if tool_parser(chat_template, tools) is None:
        raise ApiError(400, NO_FORMAT, param="tools")
    if body.return_token_origins:
        raise ApiError(
            400,
            "return_token_origins tells of text that is sent as it is, and tool calls are not; "
            "leave one out",
            param="return_token_origins",
        )
    form = None
    if choice == "required" or isinstance(choice, NamedTool):
        name = choice.function.name if isinstance(choice, NamedTool) else None
        form = tool_form(
            chat_template, tools, name, is_parallel=body.parallel_tool_calls is not False
        )
    max_calls = 1 if body.parallel_tool_calls is False else None
    return ToolUse(tools, form, lambda: tool_parser(chat_template, tools), max_calls)
