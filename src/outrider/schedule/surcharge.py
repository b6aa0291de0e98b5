"""What drafts really add to a step, over what is known of it; learnt from steps with and without.

The table prices a forward by its rows, and the time of drafting is measured. But weighing drafts,
learning from them and handing their tokens on take time that is in neither, and further rows may
cost more in an engine than in a measurement. At a load where a step is dear and drafts gain little,
that decides whether they gain at all.

So steps are compared at each load. Those without drafts say how fast the machine is now, beside the
table; those with drafts, what these added. The ratio of that to what was expected is the factor by
which further drafts are held to be dearer. Where nobody decodes without drafts any more, a step in
which none are made is asked for now and then, more often where there is little to lose by it.
"""

from dataclasses import dataclass
from typing import Final

BARE_EVIDENCE: Final = 8
"""Steps without drafts before a load has an opinion."""
WEIGHT: Final = 1 / 32
"""Of the newest step without drafts in the moving average of speeds."""
MEMORY: Final = 31 / 32
"""What sums over steps with drafts keep of themselves with each."""
DOUBT: Final = 1.0
"""Steps' worth of time in which drafts added what was expected, before anything was seen."""
MOST: Final = 2.0
"""No factor is larger: what is seen seldom must not keep drafts away for good."""
OUTLIER: Final = 2.0
"""Steps that took so many times what they should were held up by other work."""
LITTLE: Final = 1.25
"""Expected tokens per time over plain decoding, below which little is lost by a look."""
LOOK_EVERY: Final = 32
SELDOM_LOOK_EVERY: Final = 256
"""Steps with drafts between two looks at a step without, where little and where much is lost."""


@dataclass(slots=True)
class _Load:
    """What was seen at one load.

    `speed` is the time of bare steps over the table's; `expected` and `excess` are times that
    drafts were to add and did add, in seconds of the table.
    """

    num_bare: int = 0
    speed: float = 1.0
    expected: float = 0.0
    excess: float = 0.0
    since_bare: int = 0
    gain: float = 1.0
    factor: float = 1.0


class Surcharge:
    """Learns one factor for each load; loads are numbers of requests, in powers of two."""

    def __init__(self) -> None:
        """Start by believing the table."""
        self._loads: dict[int, _Load] = {}

    def factor(self, num_requests: int) -> float:
        """How many times what is known of their cost drafts cost at this load; at least 1."""
        return self._load(num_requests).factor

    def takes_a_look(self, num_requests: int) -> bool:
        """Whether the step that begins should be made without drafts, to see how long that takes.

        A step that then reads a prompt as well says nothing, and another is asked for in due time.
        """
        load = self._load(num_requests)
        is_due = load.since_bare >= (LOOK_EVERY if load.gain < LITTLE else SELDOM_LOOK_EVERY)
        if is_due:
            load.since_bare = 0
        return is_due

    def hear(
        self, num_requests: int, *, bare: float, extra: float, gain: float, seconds: float
    ) -> None:
        """Hear how long a step took in which nobody read a prompt.

        Args:
            num_requests: rows that yielded a token.
            bare: seconds the table gives for the step without drafts.
            extra: seconds that drafts should have added; 0 where nobody was asked for any.
            gain: tokens per time that the step was expected to give, over those without drafts.
            seconds: what it took.
        """
        load = self._load(num_requests)
        if not extra:
            ratio = seconds / bare
            load.since_bare = 0
            load.num_bare += 1
            if load.num_bare > 1:
                ratio = min(ratio, OUTLIER * load.speed)
            load.speed += (ratio - load.speed) * max(WEIGHT, 1 / load.num_bare)
            return
        load.since_bare += 1
        load.gain += (gain - load.gain) * WEIGHT
        if load.num_bare < BARE_EVIDENCE:
            return
        usual = min(seconds / load.speed, OUTLIER * (bare + extra))
        load.expected = MEMORY * load.expected + extra
        load.excess = MEMORY * load.excess + usual - bare
        doubt = DOUBT * bare
        factor = (load.excess + doubt) / (load.expected + doubt)
        load.factor = min(max(factor, 1.0), MOST)

    def _load(self, num_requests: int) -> _Load:
        return self._loads.setdefault(num_requests.bit_length(), _Load())
