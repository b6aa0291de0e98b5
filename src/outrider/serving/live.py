"""The live page and the state it polls: what a driver is doing, in numbers that are small to send.

The page is static files in `web/`. It talks to this server alone; its policy lets the browser load
nothing from elsewhere and run no script that is not one of those files.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse

from outrider.schedule.cost import StepCost
from outrider.serving.driver import Driver
from outrider.serving.history import StepSummary

WEB: Final = Path(__file__).parent / "web"
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_LATELY: Final = 20
"""Steps that make the operating point."""
_FEWEST_ROWS: Final = 16
"""The cost curve goes at least this far, so that there is a curve to see."""

Point = tuple[float, float]


def state_record(driver: Driver, model: str) -> dict[str, Any]:
    """Describe the driver of `model` now: counters since its start, the rest from its last steps.

    `verify_lengths` counts rounds by requests in the step (1, 2, 3–4, 5–8, …) and length.
    `step_cost` has (rows, seconds) of the forward: from the cost table, as observed in steps that
    read no prompt, and the mean of the last of these.
    """
    config, counts = driver.llm.config, driver.metrics.acceptance
    speculation = config.speculative
    steps = list(driver.history)
    decoding = [step for step in steps if _reads_no_prompt(step)]
    return {
        "time": driver.clock(),
        "model": model,
        "method": None if speculation is None else speculation.method,
        "length_policy": config.length_policy,
        "verify_rule": config.verify_rule,
        "running": driver.num_running,
        "waiting": driver.num_waiting,
        "counts": {
            name: getattr(counts, name)
            for name in ("rounds", "drafted", "verified", "accepted", "delivered")
        },
        "verified_at": list(counts.verified_at),
        "reached_at": list(counts.reached_at),
        "accepted_at": list(counts.accepted_at),
        "verify_lengths": _verify_lengths(steps),
        "step_cost": _step_cost(decoding, driver.llm.engine.cost),
    }


def _reads_no_prompt(step: StepSummary) -> bool:
    return bool(step.verify_lengths) and step.rows == len(step.verify_lengths) + sum(
        step.verify_lengths
    )


def _verify_lengths(steps: Sequence[StepSummary]) -> list[dict[str, Any]]:
    by_load: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for step in steps:
        if step.verify_lengths:
            by_load[1 << (step.requests - 1).bit_length()].update(step.verify_lengths)
    return [
        {
            "requests": _range(most),
            "counts": [lengths[length] for length in range(max(lengths) + 1)],
        }
        for most, lengths in sorted(by_load.items())
    ]


def _range(most: int) -> str:
    """Name the numbers of requests that are counted together, `most` at most."""
    fewest = most // 2 + 1
    return str(most) if fewest >= most else f"{fewest}–{most}"


def _step_cost(steps: Sequence[StepSummary], cost: StepCost | None) -> dict[str, Any]:
    by_rows: defaultdict[int, list[float]] = defaultdict(list)
    for step in steps:
        by_rows[step.rows].append(step.forward_seconds)
    last = steps[-_LATELY:]
    curve: list[Point] = []
    if cost is not None:
        most = 2 * max([_FEWEST_ROWS // 2, *by_rows])
        seconds = cost.forward_curve(fmean(step.context_len for step in last) if last else 0, most)
        curve = [(rows, seconds[rows]) for rows in range(1, most + 1)]
    return {
        "curve": curve,
        "observed": [(rows, median(each)) for rows, each in sorted(by_rows.items())],
        "now": (fmean(step.rows for step in last), fmean(step.forward_seconds for step in last))
        if last
        else None,
    }


def live_router(driver: Driver, model: str) -> APIRouter:
    """Build the routes `/`, `/web/…` and `/outrider/state`; `model` is its name for clients."""
    router = APIRouter()

    @router.get("/outrider/state", tags=["live"])
    async def state() -> dict[str, Any]:
        """What the server is doing now, as the live page shows it."""
        return state_record(driver, model)

    @router.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return _file("index.html")

    @router.get("/web/{name}", include_in_schema=False)
    async def file(name: str) -> FileResponse:
        return _file(name)

    return router


def _file(name: str) -> FileResponse:
    """Give a file of the page; nothing else can be named."""
    path = next((path for path in WEB.iterdir() if path.name == name), None)
    if path is None or path.suffix not in _TYPES:
        raise HTTPException(404, f"the page has no file {name!r}")
    return FileResponse(path, media_type=_TYPES[path.suffix], headers=_HEADERS)
