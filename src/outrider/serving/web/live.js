// Polls the server's state once a second and draws it.

import { Plot, bars, grid, lines, short } from "./plots.js";
import { authorization } from "./stream.js";

const SECONDS = 120;
const WINDOW = 30;

/** What changed between two readings; rates are per second, null where nothing happened. */
export function change(before, after) {
  const seconds = after.time - before.time;
  const rounds = after.counts.rounds - before.counts.rounds;
  const accepted = after.counts.accepted - before.counts.accepted;
  return {
    time: after.time,
    tokensPerSecond: seconds > 0 ? (after.counts.delivered - before.counts.delivered) / seconds : 0,
    acceptanceLength: rounds > 0 ? 1 + accepted / rounds : null,
  };
}

/** Accept rates by position between two readings: marginal and conditional. */
export function acceptRates(before, after) {
  const since = (name, position) => (after[name][position] ?? 0) - (before?.[name][position] ?? 0);
  const found = [];
  for (let position = 0; position < after.verified_at.length; position += 1) {
    const verified = since("verified_at", position);
    if (verified <= 0) break;
    const reached = since("reached_at", position);
    const accepted = since("accepted_at", position);
    found.push({ marginal: accepted / verified, conditional: reached > 0 ? accepted / reached : 0, verified });
  }
  return found;
}

export class Live {
  constructor(key, onProblem) {
    this.key = key;
    this.onProblem = onProblem;
    this.readings = [];
    this.changes = [];
    const parent = document.getElementById("plots");
    this.speed = new Plot(parent, "plot-speed", "Output tokens per second");
    this.length = new Plot(parent, "plot-length", "Acceptance length");
    this.rates = new Plot(parent, "plot-rates", "Accept rate by draft position");
    this.lengths = new Plot(parent, "plot-verify", "Verify length by load");
    this.cost = new Plot(parent, "plot-cost", "Step cost: ms of a forward");
  }

  /** Asks again and again; a page that nobody sees does not ask. */
  async run() {
    while (true) {
      if (!document.hidden) await this.poll();
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }

  async poll() {
    try {
      const response = await fetch("outrider/state", { headers: authorization(this.key()) });
      if (response.status === 401) throw new Error("the server wants an API key: put it into the options");
      if (!response.ok) throw new Error(`the server's state cannot be read (${response.status})`);
      this.take(await response.json());
      this.onProblem("");
    } catch (error) {
      this.onProblem(error instanceof TypeError ? "the server cannot be reached" : error.message);
    }
  }

  take(state) {
    const last = this.readings.at(-1);
    if (last && state.time < last.time) this.readings = this.changes = [];
    this.readings = [...this.readings, state].filter((each) => each.time >= state.time - SECONDS);
    if (this.readings.length > 1) {
      const now = change(this.readings.at(-2), state);
      this.changes = [...this.changes, now].filter((each) => each.time >= state.time - SECONDS);
    }
    this.numbers(state);
    this.drawTimes(state);
    this.drawRates(state);
    this.drawLengths(state);
    this.drawCost(state);
  }

  numbers(state) {
    const now = this.changes.at(-1);
    const set = (id, text) => (document.getElementById(id).textContent = text);
    const draft = state.method ? `drafter ${state.method}` : "no drafter";
    set("about", `${state.model} · ${draft} · verify rule ${state.verify_rule}`);
    set("running", short(state.running));
    set("waiting", short(state.waiting));
    set("rate", short(now?.tokensPerSecond ?? 0));
    set("length", short(this.changes.findLast((each) => each.acceptanceLength !== null)?.acceptanceLength));
    set("policy", state.length_policy);
  }

  drawTimes(state) {
    const age = Math.min(SECONDS, Math.max(30, state.time - this.readings[0].time));
    for (const [plot, name, unit] of [
      [this.speed, "tokensPerSecond", "tokens/s"],
      [this.length, "acceptanceLength", "tokens per round"],
    ]) {
      const points = this.changes.map((each) => [each.time - state.time, each[name]]);
      const values = points.map(([, value]) => value).filter((value) => value !== null);
      const drawing = lines({ series: [{ name: unit, points }], xLabel: "seconds from now", xRange: [-age, 0] });
      const highest = values.length ? Math.max(...values) : null;
      const says = values.length
        ? `now ${short(values.at(-1))} ${unit}, at most ${short(highest)} in the last ${SECONDS} s`
        : `nothing generated in the last ${SECONDS} s`;
      const rows = points.map(([time, value]) => [short(Math.round(time)), short(value)]).reverse();
      plot.show(drawing, says, ["seconds from now", unit], rows);
    }
  }

  drawRates(state) {
    const before = this.readings.find((each) => each.time >= state.time - WINDOW);
    let found = before === state ? [] : acceptRates(before, state);
    let when = `the last ${WINDOW} s`;
    if (!found.length) {
      found = acceptRates(null, state);
      when = "all that was served";
    }
    const groups = found.map((_, position) => String(position + 1));
    const series = ["marginal", "conditional"].map((name) => ({ name, values: found.map((each) => each[name]) }));
    const drawing = bars({ groups, series, xLabel: "draft position", top: 1 });
    const says = found.length
      ? `${when}: the first draft token is kept ${(100 * found[0].marginal).toFixed(0)} % of the time`
      : "no draft was verified yet";
    const rows = found.map((each, position) => [
      String(position + 1), each.marginal.toFixed(3), each.conditional.toFixed(3), String(each.verified),
    ]);
    this.rates.show(drawing, says, ["position", "marginal", "conditional", "verified"], rows);
  }

  drawLengths(state) {
    const loads = state.verify_lengths;
    const longest = Math.max(0, ...loads.map((each) => each.counts.length - 1));
    const total = (counts) => counts.reduce((sum, each) => sum + each, 0);
    const mean = (counts) => counts.reduce((sum, each, length) => sum + each * length, 0) / total(counts);
    const columns = loads.map((each) => String(each.requests));
    const names = Array.from({ length: longest + 1 }, (_, length) => String(length));
    const shares = loads.map(({ counts }) => names.map((_, length) => (counts[length] ?? 0) / total(counts)));
    const drawing = grid({ columns, rows: names, shares, xLabel: "requests in the step", yLabel: "verify length" });
    const says = loads.length
      ? `mean by requests in the step: ${loads.map((each) => `${each.requests}: ${short(mean(each.counts))}`).join(", ")}; darker is more common`
      : "no step yet";
    const rows = loads.map((each, column) => [columns[column], short(mean(each.counts)), each.counts.join(" ")]);
    this.lengths.show(drawing, says, ["requests", "mean length", "rounds by length 0, 1, …"], rows);
  }

  drawCost(state) {
    const { curve, observed, now } = state.step_cost;
    const inMs = ([rows, seconds]) => [rows, seconds * 1000];
    const series = [{ name: "measured", points: curve.map(inMs) }];
    const drawing = lines({
      series, dots: observed.map(inMs), now: now ? inMs(now) : null, xLabel: "rows in the forward",
    });
    const lately = now ? `lately ${short(now[0])} rows in ${short(now[1] * 1000)} ms` : "no step yet";
    const source = curve.length ? "line: measured cost table; dots: steps" : "dots: steps; there is no cost table";
    const rows = observed.map(([count, seconds]) => [short(count), short(seconds * 1000)]);
    this.cost.show(drawing, `${lately} (${source})`, ["rows", "median ms of steps"], rows);
  }
}
