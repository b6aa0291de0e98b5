"""Charts are well-formed SVG in which every value lies where its axis says."""

import re
import xml.etree.ElementTree as ET

import pytest

from outrider.analysis.plots import Panel, Series, figure

SVG = "{http://www.w3.org/2000/svg}"


def panel(**changes: object) -> Panel:
    options: dict[str, object] = {
        "title": "a < b & c",
        "x_label": "tokens",
        "y_label": "nats",
        "series": [Series("one", [0.0, 5.0, 10.0], [0.0, 1.0, 2.0])],
    }
    return Panel(**(options | changes))  # type: ignore[arg-type]


def points(root: ET.Element) -> list[tuple[float, float]]:
    line = root.find(f".//{SVG}polyline")
    assert line is not None
    return [
        (float(x), float(y)) for x, y in (part.split(",") for part in line.attrib["points"].split())
    ]


def test_it_is_xml_with_the_labels_escaped() -> None:
    """Catches markup broken by a domain's name."""
    root = ET.fromstring(figure([panel()]))
    texts = [node.text for node in root.iter(f"{SVG}text")]
    assert "a < b & c" in texts
    assert {"tokens", "nats", "one"} <= set(texts)


def test_equal_steps_are_equally_far_apart_and_up_is_more() -> None:
    """Catches a mirrored or clipped axis."""
    places = points(ET.fromstring(figure([panel()])))
    (x0, y0), (x1, y1), (x2, y2) = places
    assert x0 < x1 < x2
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 > y1 > y2
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)


def test_a_logarithmic_axis_keeps_ratios() -> None:
    """Catches a logarithm of the place instead of the value."""
    series = [Series("one", [1.0, 10.0, 100.0], [0.0, 1.0, 2.0])]
    (_, y0), (_, y1), (_, y2) = points(ET.fromstring(figure([panel(series=series, is_log=True)])))
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)


def test_ticks_are_round_numbers_within_the_axis() -> None:
    """Catches labels such as 3.3333, and labels outside the frame."""
    for high in (0.007, 0.9, 3.0, 47.0, 1300.0):
        series = [Series("one", [0.0, high], [0.0, high])]
        root = ET.fromstring(figure([panel(series=series)]))
        labels = [node.text or "" for node in root.iter(f"{SVG}text")]
        ticks = [label for label in labels if re.fullmatch(r"[\d.e+-]+", label)]
        assert 6 <= len(ticks) <= 24, (high, ticks)
        for tick in ticks:
            assert float(tick) <= high * 1.07
            assert re.fullmatch(r"[^1-9]*[1-9]?[05]?[^1-9]*", tick.replace("e-05", "")), tick


def test_bars_stand_on_the_axis_beside_each_other() -> None:
    """Catches bars that overlap, or that show another series' value."""
    series = [Series("mean", [4.0, 2.0]), Series("max", [8.0, 6.0])]
    root = ET.fromstring(figure([panel(series=series, groups=["code", "chat"])]))
    drawn = [node.attrib for node in root.iter(f"{SVG}rect")]
    bars, swatches = drawn[:4], drawn[4:]
    assert [each["class"] for each in swatches] == ["f0", "f1"]
    lefts = [float(bar["x"]) for bar in bars]
    assert lefts == sorted(lefts)
    heights = [float(bar["height"]) for bar in bars]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)
    assert heights[3] == pytest.approx(3 * heights[2], abs=0.2)
    bottoms = {round(float(bar["y"]) + float(bar["height"]), 1) for bar in bars}
    assert len(bottoms) == 1


def test_a_flat_or_empty_line_is_no_division_by_zero() -> None:
    """Catches an axis of no length."""
    for series in ([Series("one", [0.0], [3.0])], [Series("none", [], [])]):
        ET.fromstring(figure([panel(series=series), panel(mark=1.0)]))


def test_series_differ_in_more_than_colour_in_light_and_dark() -> None:
    """Catches lines that print alike, and a chart that is unreadable on a dark page."""
    series = [Series(str(i), [1.0, 2.0], [0.0, 1.0]) for i in range(5)]
    svg = figure([panel(series=series)])
    lines = ET.fromstring(svg).iter(f"{SVG}polyline")
    assert len({line.attrib["stroke-dasharray"] for line in lines}) == 5
    assert "prefers-color-scheme:dark" in svg
