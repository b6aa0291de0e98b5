"""After a step that raised: find the request that is to blame and serve the others on.

What a request generates does not depend on who it shares a step with, so each request of the broken
step is stepped alone until it has gained a token. The one that breaks its own step is to blame.
"""

import logging
from collections.abc import Iterator
from typing import Final

from outrider.core.ids import RequestId
from outrider.engine.engine import Engine
from outrider.engine.report import StepReport
from outrider.errors import RequestFailed

logger = logging.getLogger(__name__)

MOST_STEPS_ALONE: Final = 10_000
"""A guard; a prompt of any length is read in fewer."""


def recover(engine: Engine, error: Exception) -> Iterator[StepReport | tuple[RequestId, str]]:
    """Yield the steps made alone, and (request, reason) for each request that must be given up.

    If every request gets through alone, nobody is to blame but their company, and they are told
    apart no further: the next steps run as before.
    """
    suspects = engine.start_over()
    if len(suspects) == 1:
        yield suspects[0], _reason(error)
        return
    for request_id in suspects:
        try:
            yield from _alone(engine, request_id)
        except Exception as own:
            logger.exception("request %s breaks its step", request_id)
            engine.start_over()
            yield request_id, _reason(own)
        else:
            engine.start_over()


def _alone(engine: Engine, request_id: RequestId) -> Iterator[StepReport]:
    for _ in range(MOST_STEPS_ALONE):
        report = engine.step(alone=request_id)
        if not report.num_requests:
            raise RequestFailed("its tokens were committed and could not be delivered")
        yield report
        if report.deltas:
            return


def _reason(error: Exception) -> str:
    return f"internal error while the request was served: {error!r}"
