"""A running request: its tokens and how far it has come. The only mutable record in `core`."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from outrider.core.acceptance import Acceptance
from outrider.core.ids import RequestId
from outrider.core.matcher import TokenMatcher
from outrider.core.outcome import Finish, Origin, TokenLogprobs
from outrider.core.reading import Texture
from outrider.core.request import Request, SamplingParams


class Status(StrEnum):
    """Where a sequence stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens of one request. `tokens[-1]` is the anchor once the prompt is in the KV cache."""

    request: Request
    tokens: list[int]
    num_prompt: int
    status: Status = Status.WAITING
    num_rounds: int = 0
    num_preemptions: int = 0
    num_cached_prompt: int = 0
    num_reported: int = 0
    """Output tokens that step reports have told of."""
    text: str = ""
    origins: list[Origin] = field(default_factory=list)
    sources: list[str | None] = field(default_factory=list)
    """Per delivered token the drafter it came from; None for the target's own."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    acceptance: Acceptance = field(default_factory=Acceptance)
    texture: Texture = field(default_factory=Texture)
    """Of the tokens that were read for it so far."""
    finish: Finish | None = None
    matcher: TokenMatcher | None = None
    """Knows what may come next where the output must follow a grammar."""

    @classmethod
    def of(cls, request: Request) -> Self:
        """Start a sequence at the end of its prompt."""
        return cls(request=request, tokens=list(request.prompt), num_prompt=len(request.prompt))

    def __len__(self) -> int:
        """Count prompt and output tokens."""
        return len(self.tokens)

    @property
    def id(self) -> RequestId:
        """The request's id."""
        return self.request.id

    @property
    def params(self) -> SamplingParams:
        """The request's sampling parameters."""
        return self.request.params

    @property
    def prompt(self) -> tuple[int, ...]:
        """The prompt tokens."""
        return self.request.prompt

    @property
    def output(self) -> Tokens[int]:
        """The delivered tokens."""
        return self.tokens[self.num_prompt :]

    @property
    def num_output(self) -> int:
        """How many tokens were delivered; also the output position of the next one."""
        return len(self.tokens) - self.num_prompt

    def take_back(self) -> None:
        """Forget the output tokens that no step report has told of."""
        for per_token in (self.origins, self.sources, self.logprobs):
            del per_token[self.num_reported :]
        del self.tokens[self.num_prompt + self.num_reported :]
        self.texture = Texture()

    @property
    def num_remaining(self) -> int:
        """How many more tokens the request may deliver."""
        return self.params.max_tokens - self.num_output

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will come."""
        return self.status is Status.FINISHED
