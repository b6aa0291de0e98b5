"""One round of one request as a record: what acceptance by position and by source is made of."""

from dataclasses import dataclass

from outrider.core.ids import RequestId
from outrider.core.reading import Reading


@dataclass(frozen=True, slots=True)
class Round:
    """What was drafted for a request in one step and what became of it.

    `num_output` are the output tokens before the round: 0 marks the round that ends the prompt.
    `confidence` and `sources` have one entry per verified token, or are None where the drafter
    gives none; a source is the name of the drafter the token came from. `survival` are the chances
    that the length policy planned with. `reading` is what the text was made of, None where nobody
    read it.
    """

    request_id: RequestId
    num_output: int
    drafted: int
    verified: int
    accepted: int
    delivered: int
    confidence: tuple[float, ...] | None = None
    sources: tuple[str, ...] | None = None
    survival: tuple[float, ...] | None = None
    reading: Reading | None = None
