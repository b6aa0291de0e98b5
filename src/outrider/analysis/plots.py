"""Charts as SVG text: readable in light and dark, apart in grey and to colour-blind eyes.

Colours are those of Okabe and Ito (2008), lightened where the reader's screen is dark; every series
has a dash pattern of its own as well. Standard library only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

PANEL_WIDTH, PANEL_HEIGHT = 460, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 34, 46
_LEGEND_ROW, _LEGEND_COLUMN = 16, 140
_TICKS = 5
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 2", "12 4")
_LIGHT = ("#0072B2", "#D55E00", "#009E73", "#8F4A7A", "#7A5C00", "#56B4E9", "#444444")
_DARK = ("#56B4E9", "#FF9E5E", "#2FD3A5", "#E6A3CC", "#E8C547", "#9CD3F5", "#CCCCCC")

STYLE = (
    "svg.chart{font:12px system-ui,sans-serif;background:#fff;color:#222}"
    "svg.chart text{fill:currentColor}"
    "svg.chart .title{font-size:13px;font-weight:600}"
    "svg.chart .grid{stroke:currentColor;stroke-opacity:.15}"
    "svg.chart .mark{stroke:currentColor;stroke-opacity:.55;stroke-dasharray:3 3;fill:none}"
    "svg.chart .line{fill:none;stroke-width:2}"
    + "".join(f".s{i}{{stroke:{colour}}}.f{i}{{fill:{colour}}}" for i, colour in enumerate(_LIGHT))
    + "@media (prefers-color-scheme:dark){svg.chart{background:#16181d;color:#e6e6e6}"
    + "".join(f".s{i}{{stroke:{colour}}}.f{i}{{fill:{colour}}}" for i, colour in enumerate(_DARK))
    + "}"
)


@dataclass(frozen=True, slots=True)
class Series:
    """A named line: y over x, both finite. Of a bar chart: one bar per group."""

    name: str
    ys: Sequence[float]
    xs: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart. With `groups` its series are bars side by side, one group per name, else lines.

    `mark` is a height to draw a line at, such as a speedup of 1. `is_log` scales the heights by
    their logarithm, which needs them above 0, and `is_log_x` the places along the bottom.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    groups: Sequence[str] = field(default=())
    mark: float | None = None
    is_log: bool = False
    is_log_x: bool = False


def figure(panels: Sequence[Panel], *, columns: int = 2) -> str:
    """Lay panels out in a grid and give one SVG document."""
    columns = min(columns, len(panels))
    heights = [_height(panel) for panel in panels]
    rows = [heights[start : start + columns] for start in range(0, len(heights), columns)]
    tops = [sum(max(row) for row in rows[:number]) for number in range(len(rows) + 1)]
    body = "".join(
        f'<g transform="translate({index % columns * PANEL_WIDTH} {tops[index // columns]})">'
        f"{_panel(panel)}</g>"
        for index, panel in enumerate(panels)
    )
    width, height = columns * PANEL_WIDTH, tops[-1]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img"><style>{STYLE}</style>{body}</svg>\n'
    )


def _height(panel: Panel) -> int:
    return PANEL_HEIGHT + -(-len(panel.series) // _legend_columns()) * _LEGEND_ROW


def _legend_columns() -> int:
    return (PANEL_WIDTH - _LEFT) // _LEGEND_COLUMN


@dataclass(frozen=True, slots=True)
class _Axis:
    """Maps values to places on the page."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        if not self.is_log:
            return _round_ticks(self.low, self.high)
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        ticks = [factor * 10.0**each for each in decades for factor in (1, 2, 5)]
        return [tick for tick in ticks if self.low <= tick <= self.high]


def _round_ticks(low: float, high: float) -> list[float]:
    """Give about five round numbers within the range."""
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [step * n for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _axes(panel: Panel) -> tuple[_Axis, _Axis]:
    ys = [y for one in panel.series for y in one.ys] or [0.0, 1.0]
    if panel.mark is not None:
        ys.append(panel.mark)
    low = min(ys) / 1.1 if panel.is_log else min(0.0, *ys)
    high = max(ys) * 1.06
    y_axis = _Axis(low, high if high > low else low + 1, PANEL_HEIGHT - _BOTTOM, _TOP, panel.is_log)
    if panel.groups:
        first, last = 0.0, float(len(panel.groups))
    else:
        xs = [x for one in panel.series for x in one.xs] or [0.0, 1.0]
        first, last = min(xs), max(xs)
    last = last if last > first else first + 1
    x_axis = _Axis(first, last, _LEFT, PANEL_WIDTH - _RIGHT, panel.is_log_x)
    return x_axis, y_axis


def _panel(panel: Panel) -> str:
    x_axis, y_axis = _axes(panel)
    middle = (_LEFT + PANEL_WIDTH - _RIGHT) / 2
    centre = (_TOP + PANEL_HEIGHT - _BOTTOM) / 2
    parts = [
        _text(panel.title, _LEFT, 20, kind="title"),
        _text(panel.x_label, middle, PANEL_HEIGHT - 10, anchor="middle"),
        f'<g transform="translate(14 {centre:.1f}) rotate(-90)">'
        f"{_text(panel.y_label, 0, 0, anchor='middle')}</g>",
        *(_y_tick(tick, y_axis) for tick in y_axis.ticks),
        *(_bars if panel.groups else _lines)(panel, x_axis, y_axis),
    ]
    if panel.mark is not None:
        height = y_axis.at(panel.mark)
        parts.append(_segment("mark", _LEFT, height, PANEL_WIDTH - _RIGHT, height))
    bars = bool(panel.groups)
    parts += [_legend(index, one.name, bars=bars) for index, one in enumerate(panel.series)]
    return "".join(parts)


def _lines(panel: Panel, x_axis: _Axis, y_axis: _Axis) -> list[str]:
    bottom = PANEL_HEIGHT - _BOTTOM
    parts = [
        _text(f"{tick:g}", x_axis.at(tick), bottom + 16, anchor="middle") for tick in x_axis.ticks
    ]
    for index, one in enumerate(panel.series):
        pairs = zip(one.xs, one.ys, strict=True)
        points = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in pairs)
        style = f'class="line s{_colour(index)}" stroke-dasharray="{_dash(index)}"'
        parts.append(f'<polyline {style} points="{points}"/>')
    return parts


def _bars(panel: Panel, x_axis: _Axis, y_axis: _Axis) -> list[str]:
    bottom = PANEL_HEIGHT - _BOTTOM
    slot = (x_axis.end - x_axis.start) / len(panel.groups)
    width = slot * 0.8 / max(1, len(panel.series))
    parts = []
    for number, name in enumerate(panel.groups):
        left = x_axis.at(number) + slot * 0.1
        parts.append(_text(name, left + slot * 0.4, bottom + 16, anchor="middle"))
        for index, one in enumerate(panel.series):
            value = one.ys[number]
            top, x = y_axis.at(value), left + index * width
            parts.append(
                f'<rect class="f{_colour(index)}" x="{x:.1f}" y="{top:.1f}" '
                f'width="{width * 0.92:.1f}" height="{max(0.0, bottom - top):.1f}"/>'
            )
            parts.append(_text(_short(value), x + width * 0.46, top - 3, anchor="middle"))
    return parts


def _y_tick(tick: float, axis: _Axis) -> str:
    height = axis.at(tick)
    return _segment("grid", _LEFT, height, PANEL_WIDTH - _RIGHT, height) + _text(
        f"{tick:g}", _LEFT - 6, height + 4, anchor="end"
    )


def _legend(index: int, name: str, *, bars: bool) -> str:
    columns = _legend_columns()
    x = _LEFT + index % columns * _LEGEND_COLUMN
    y = PANEL_HEIGHT + 4 + index // columns * _LEGEND_ROW
    colour, dash = _colour(index), _dash(index)
    if bars:
        swatch = f'<rect class="f{colour}" x="{x + 12}" y="{y - 6}" width="14" height="12"/>'
        return swatch + _text(name, x + 32, y + 4)
    return (
        f'<line class="line s{colour}" stroke-dasharray="{dash}" '
        f'x1="{x}" y1="{y}" x2="{x + 26}" y2="{y}"/>' + _text(name, x + 32, y + 4)
    )


def _colour(index: int) -> int:
    return index % len(_LIGHT)


def _dash(index: int) -> str:
    return _DASHES[index % len(_DASHES)]


def _segment(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(text: str, x: float, y: float, *, anchor: str = "start", kind: str = "") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _short(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 1 else f"{value:.3g}"
