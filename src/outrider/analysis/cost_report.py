"""A step cost table for people: rows, spread, throughput, faults, a chart."""

from typing import Any

from outrider.analysis.plots import Panel, Series, figure
from outrider.analysis.tables import table
from outrider.core.step_cost import StepCostTable
from outrider.schedule.cost import StepCost, faults_of

MILLISECONDS = 1000.0


def cost_lines(costs: StepCostTable) -> list[str]:
    """Describe a table."""
    where = costs.measured_on
    lines = [
        f"{where.model} on {where.backend}, {where.threads} threads",
        where.machine,
        "",
        *_forward_lines(costs),
        "",
        *_request_lines(costs),
    ]
    for fault in faults_of(costs):
        weight = "cannot be used" if fault.is_fatal else "smoothed"
        lines.append(f"{fault.kind}: {fault.sentence} ({weight})")
    return lines


def _forward_lines(costs: StepCostTable) -> list[str]:
    head = ["rows"]
    for context in costs.contexts:
        head += [f"ms at context {context}", "spread", "rows/s"]
    body = [
        [str(rows)]
        + [
            cell
            for own in costs.forward
            for cell in (
                f"{MILLISECONDS * own[index].seconds:.2f}",
                f"{own[index].spread / own[index].seconds:.0%}" if own[index].seconds else "-",
                f"{rows / own[index].seconds:.0f}" if own[index].seconds else "-",
            )
        ]
        for index, rows in enumerate(costs.rows)
    ]
    return table([head, *body])


def _request_lines(costs: StepCostTable) -> list[str]:
    names = list(costs.drafting)
    cost = {name: StepCost(costs, name) for name in names}
    head = ["requests", "ms besides forward and drafts", *(f"ms drafting: {n}" for n in names)]
    body = [
        [str(batch), f"{MILLISECONDS * own.seconds:.2f}"]
        + [f"{MILLISECONDS * cost[name].drafting(batch):.2f}" for name in names]
        for batch, own in costs.host
    ]
    return table([head, *body])


def cost_record(costs: StepCostTable) -> dict[str, Any]:
    """Give what the table file does not say: faults."""
    return {
        "faults": [
            {"kind": fault.kind, "sentence": fault.sentence, "is_fatal": fault.is_fatal}
            for fault in faults_of(costs)
        ]
    }


def cost_chart(costs: StepCostTable) -> str:
    """Draw forwards per second against rows, as measured and as the policy reads them, as SVG."""
    cost = StepCost(costs)
    series = []
    for context, own in zip(costs.contexts, costs.forward, strict=True):
        rows = [float(number) for number in costs.rows]
        series.append(Series(f"measured, context {context}", [1 / t.seconds for t in own], rows))
        curve = cost.forward_curve(context, costs.rows[-1])
        every = range(1, costs.rows[-1] + 1)
        series.append(
            Series(
                f"fitted, context {context}", [1 / curve[n] for n in every], list(map(float, every))
            )
        )
    panel = Panel(
        title="What the target makes of a window",
        x_label="rows",
        y_label="forwards per second",
        series=series,
    )
    return figure([panel])
