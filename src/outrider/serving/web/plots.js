// Small SVG plots, each with a sentence and a table that say the same.

const WIDTH = 340;
const HEIGHT = 190;
const LEFT = 44;
const RIGHT = 10;
const TOP = 12;
const BOTTOM = 36;
const LEGEND = 16;
const NAMESPACE = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export function html(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

/** A number in few characters. */
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  return size >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(size >= 10 ? 1 : 2);
}

/** About four round numbers from `low` to `high`. */
export function ticks(low, high) {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high * 1.0001; n += 1) found.push(n * step);
  return found;
}

/** A figure whose drawing and table are replaced by `show`. */
export class Plot {
  constructor(parent, id, title) {
    this.id = id;
    this.caption = html("figcaption", { id: `${id}-title`, textContent: title });
    this.place = html("div");
    this.sentence = html("p", { id: `${id}-says`, className: "quiet", textContent: "nothing yet" });
    this.table = html("table");
    this.details = html("details", {}, html("summary", { textContent: "as a table" }), this.table);
    const figure = html("figure", { id }, this.caption, this.place, this.sentence, this.details);
    parent.append(figure);
  }

  /** `head` and `rows` make the table; it is built only while it is open. */
  show(drawing, sentence, head, rows) {
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-labelledby", `${this.id}-title`);
    drawing.setAttribute("aria-describedby", `${this.id}-says`);
    this.place.replaceChildren(drawing);
    this.sentence.textContent = sentence;
    this.fill = () => {
      const header = html("tr", {}, ...head.map((text) => html("th", { scope: "col", textContent: text })));
      const body = rows.map((row) => html("tr", {}, ...row.map((cell) => html("td", { textContent: cell }))));
      this.table.replaceChildren(html("thead", {}, header), html("tbody", {}, ...body));
    };
    this.details.ontoggle = () => this.details.open && this.fill();
    if (this.details.open) this.fill();
  }
}

function scale(low, high, start, end) {
  const span = high > low ? high - low : 1;
  return (value) => start + ((value - low) / span) * (end - start);
}

function frame(numSeries) {
  const height = HEIGHT + (numSeries > 1 ? LEGEND : 0);
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${height}` });
}

function axes(drawing, y, yTicks, xLabel, xTicks, x) {
  for (const tick of yTicks) {
    drawing.append(
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick) }),
      svg("text", { x: LEFT - 5, y: y(tick) + 4, "text-anchor": "end" }, short(tick)),
    );
  }
  for (const tick of xTicks) {
    drawing.append(svg("text", { x: x(tick), y: HEIGHT - BOTTOM + 14, "text-anchor": "middle" }, short(tick)));
  }
  const middle = (LEFT + WIDTH - RIGHT) / 2;
  drawing.append(svg("text", { x: middle, y: HEIGHT - 6, "text-anchor": "middle" }, xLabel));
}

function legend(drawing, names) {
  if (names.length < 2) return;
  names.forEach((name, index) => {
    const left = LEFT + index * 145;
    drawing.append(
      svg("line", { class: `line s${index}`, x1: left, x2: left + 24, y1: HEIGHT + 4, y2: HEIGHT + 4 }),
      svg("text", { x: left + 29, y: HEIGHT + 8 }, name),
    );
  });
}

/**
 * Lines over numbers. `series` is [{name, points: [[x, y], …]}]; a y of null leaves a gap. `dots`
 * are marked points, `now` the one that stands out.
 */
export function lines({ series, xLabel, dots = [], now = null, xRange = null }) {
  const marked = now ? [...dots, now] : dots;
  const points = [...series.flatMap((each) => each.points), ...marked].filter(([, y]) => y !== null);
  const xs = points.map(([x]) => x);
  const [low, high] = xRange ?? [Math.min(...xs, 0), Math.max(...xs, 1)];
  const top = Math.max(...points.map(([, y]) => y), 0) * 1.08 || 1;
  const x = scale(low, high, LEFT, WIDTH - RIGHT);
  const y = scale(0, top, HEIGHT - BOTTOM, TOP);
  const drawing = frame(series.length);
  axes(drawing, y, ticks(0, top), xLabel, ticks(low, high), x);
  series.forEach(({ points: own }, index) => {
    let path = "";
    let isOpen = false;
    for (const [px, py] of own) {
      if (py === null) isOpen = false;
      else {
        path += `${isOpen ? "L" : "M"}${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
        isOpen = true;
      }
    }
    drawing.append(svg("path", { class: `line s${index}`, d: path || "M0 0" }));
  });
  for (const [px, py] of dots) drawing.append(svg("circle", { class: "f2", cx: x(px), cy: y(py), r: 2.5 }));
  if (now) drawing.append(svg("circle", { class: "now", cx: x(now[0]), cy: y(now[1]), r: 6 }));
  legend(drawing, series.map((each) => each.name));
  return drawing;
}

/** Bars side by side: `groups` are names, `series` [{name, values}] with one value per group. */
export function bars({ groups, series, xLabel, top = null }) {
  const highest = top ?? (Math.max(0, ...series.flatMap((each) => each.values)) * 1.08 || 1);
  const y = scale(0, highest, HEIGHT - BOTTOM, TOP);
  const slot = (WIDTH - LEFT - RIGHT) / Math.max(1, groups.length);
  const width = (slot * 0.8) / series.length;
  const drawing = frame(series.length);
  axes(drawing, y, ticks(0, highest), xLabel, [], null);
  groups.forEach((name, group) => {
    const left = LEFT + slot * (group + 0.1);
    drawing.append(svg("text", { x: left + slot * 0.4, y: HEIGHT - BOTTOM + 14, "text-anchor": "middle" }, name));
    series.forEach(({ values }, index) => {
      const value = values[group] ?? 0;
      drawing.append(svg("rect", {
        class: `f${index}`,
        x: left + width * index,
        y: y(value),
        width: width * 0.92,
        height: Math.max(0, y(0) - y(value)),
      }));
    });
  });
  legend(drawing, series.map((each) => each.name));
  return drawing;
}

/** A grid of shares from 0 to 1: one column per name in `columns`, one row per name in `rows`. */
export function grid({ columns, rows, shares, xLabel, yLabel }) {
  const drawing = frame(1);
  const width = (WIDTH - LEFT - RIGHT) / Math.max(1, columns.length);
  const height = (HEIGHT - BOTTOM - TOP) / Math.max(1, rows.length);
  rows.forEach((name, row) => {
    const top = HEIGHT - BOTTOM - height * (row + 1);
    drawing.append(svg("text", { x: LEFT - 5, y: top + height / 2 + 4, "text-anchor": "end" }, name));
    columns.forEach((_, column) => {
      const share = shares[column][row] ?? 0;
      drawing.append(svg("rect", {
        class: "cell",
        x: LEFT + width * column,
        y: top,
        width,
        height,
        "fill-opacity": (share * 0.95).toFixed(3),
      }));
    });
  });
  columns.forEach((name, column) => {
    const x = LEFT + width * (column + 0.5);
    drawing.append(svg("text", { x, y: HEIGHT - BOTTOM + 14, "text-anchor": "middle" }, name));
  });
  const middle = (TOP + HEIGHT - BOTTOM) / 2;
  drawing.append(
    svg("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, xLabel),
    svg("text", { transform: `translate(11 ${middle}) rotate(-90)`, "text-anchor": "middle" }, yLabel),
  );
  return drawing;
}
