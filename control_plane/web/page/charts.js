// Lines over time, in SVG: all charts have the same axis of time, one axis of values with a unit, and marks.

import { draw, make, say, set } from "./dom.js";
import { clock } from "./format.js";

const WIDTH = 420, HEIGHT = 130, LEFT = 62, RIGHT = 6, TOP = 8, BOTTOM = 18;
const COLOURS = 7;
/** Lines after the seventh have the same colours again, and gaps. */
const DASHES = ["none", "7 3", "2 3"];
/** With a longer pause between two points a line is not drawn on. */
const PAUSE_MS = 30_000;
const SPAN_MIN_MS = 60_000;

export class Chart {
  /** format: of values; top: of the axis at least, and at most if `isShare`; nice: the end of the axis for a value. */
  constructor(parent, title, format, { top = 0, isShare = false, nice = niceNumber } = {}) {
    this.nice = nice, this.format = format, this.top = top, this.isShare = isShare;
    this.keys = make("div", { class: "keys" });
    this.lines = draw("g"), this.marks = draw("g");
    this.labels = [0, 0.5, 1].map((part) => draw("text", { class: "muted", x: LEFT - 4, y: y(part) + 4, "text-anchor": "end" }));
    this.from = draw("text", { class: "muted", x: LEFT, y: HEIGHT - 3 }), this.to = draw("text", { class: "muted", x: WIDTH - RIGHT, y: HEIGHT - 3, "text-anchor": "end" });
    this.cursor = draw("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    const grid = [0, 0.5, 1].map((part) => draw("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(part), y2: y(part) }));
    this.svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: "100%", role: "img", "aria-label": title }, ...grid, ...this.labels, this.from, this.to, this.marks, this.lines, this.cursor);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    parent.append(make("div", { class: "chart" }, make("h3", {}, title), this.keys, this.svg));
  }

  /** series: {name, values} over `times` (ms, ascending); marks: {time_ms, kind, text}; span in ms up to the last time. */
  show(times, series, marks, span) {
    const end = times.at(-1) ?? 0;
    // Of a job that has just begun, what there is, and a minute at least.
    span = Math.min(span, Math.max(end - (times[0] ?? end), SPAN_MIN_MS));
    const start = end - span;
    let first = times.length;
    while (first > 0 && times[first - 1] >= start) first--;
    let highest = this.top;
    if (!this.isShare) for (const { values } of series) for (let i = first; i < times.length; i++) if (values[i] > highest) highest = values[i];
    Object.assign(this, { times, series, start, span, high: this.isShare ? this.top : this.nice(highest) });
    const x = (ms) => this.x(ms);
    while (this.lines.children.length < series.length) this.lines.append(draw("path"));
    while (this.lines.children.length > series.length) this.lines.lastChild.remove();
    series.forEach(({ values }, index) => {
      let path = "", before = null;
      for (let i = first; i < times.length; i++) {
        if (values[i] === null || values[i] === undefined) { before = null; continue; }
        const joins = before !== null && times[i] - before <= PAUSE_MS;
        path += `${joins ? "L" : "M"}${x(times[i]).toFixed(1)} ${y(Math.min(values[i] / this.high, 1)).toFixed(1)}`;
        before = times[i];
      }
      const line = this.lines.children[index];
      set(line, "d", path || "M0 0");
      set(line, "stroke", colour(index)), set(line, "stroke-dasharray", dash(index));
    });
    [0, 0.5, 1].forEach((part, index) => say(this.labels[index], this.format(this.high * part)));
    say(this.from, times.length ? clock(Math.max(start, 0)) : ""), say(this.to, times.length ? clock(end) : "no values yet");
    this.marks.replaceChildren(...marks.filter((mark) => mark.time_ms >= start).map((mark) =>
      draw("line", { class: `mark ${mark.kind}`, x1: x(mark.time_ms), x2: x(mark.time_ms), y1: TOP, y2: HEIGHT - BOTTOM }, draw("title", {}, `${clock(mark.time_ms)} ${mark.kind}: ${mark.text}`))));
    this.tell(times.length - 1);
  }

  x(ms) { return LEFT + Math.max(0, Math.min(1, (ms - this.start) / this.span)) * (WIDTH - LEFT - RIGHT); }

  /** Values at the pointer, or the last ones. */
  point(event) {
    if (!this.times?.length) return;
    if (event === null) { set(this.cursor, "visibility", "hidden"); this.tell(this.times.length - 1); return; }
    const box = this.svg.getBoundingClientRect();
    const ms = this.start + (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT) * this.span;
    let nearest = this.times.length - 1;
    while (nearest > 0 && Math.abs(this.times[nearest - 1] - ms) <= Math.abs(this.times[nearest] - ms)) nearest--;
    const at = this.x(this.times[nearest]);
    set(this.cursor, "x1", at), set(this.cursor, "x2", at), set(this.cursor, "visibility", "visible");
    this.tell(nearest, true);
  }

  tell(index, isPast = false) {
    const count = this.series.length + (isPast ? 1 : 0);
    while (this.keys.children.length < count) this.keys.append(make("span", {}, make("i"), document.createTextNode("")));
    while (this.keys.children.length > count) this.keys.lastChild.remove();
    this.series.forEach(({ name, values }, place) => {
      const key = this.keys.children[place], value = values[index];
      key.firstChild.style.background = sample(place);
      const text = `${name} ${value === null || value === undefined ? "-" : this.format(value)}`;
      if (key.lastChild.data !== text) key.lastChild.data = text;
    });
    if (isPast) { this.keys.lastChild.firstChild.style.background = "none"; this.keys.lastChild.lastChild.data = `at ${clock(this.times[index])}`; }
  }
}

const y = (part) => HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP);
const colour = (index) => `var(--series-${index % COLOURS})`;
const dash = (index) => DASHES[Math.floor(index / COLOURS) % DASHES.length];

/** What a line looks like, beside its name. */
function sample(index) {
  const [drawn, gap] = dash(index).split(" ");
  return gap ? `repeating-linear-gradient(90deg, ${colour(index)} 0 ${drawn}px, transparent ${drawn}px ${Number(drawn) + Number(gap)}px)` : colour(index);
}

/** The next 1, 2 or 5 times a power of ten: an axis that does not change with each value. */
function niceNumber(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}

/** Minutes at which an axis of times ends. */
const MINUTES = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200];

/** The same for ms: from half a minute on in minutes, which are no powers of ten. */
export function niceTime(ms) {
  return ms <= 50_000 ? niceNumber(ms) : 60_000 * (MINUTES.find((minutes) => minutes * 60_000 >= ms) ?? niceNumber(ms / 60_000));
}
