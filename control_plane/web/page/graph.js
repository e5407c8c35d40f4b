// The graph of the plan: a layer for each step of the way from the sources, edges as curves.

import { byId, draw, say, set } from "./dom.js";
import { number, percent } from "./format.js";

const WIDTH = 172, HEIGHT = 92, GAP_X = 56, GAP_Y = 18, PAD = 6, BAR = WIDTH - 20;
const HELD = 0.2;

/** Places by stage: {x, y}. Each stage lies one layer after the last of its producers; layers are in the order of these. */
export function layout(stages, edges) {
  const layer = new Map(stages.map((stage) => [stage.stage, 0]));
  // As many rounds as stages: a plan has no circles.
  for (let round = 0; round < stages.length; round++)
    for (const edge of edges)
      layer.set(edge.consumer_stage, Math.max(layer.get(edge.consumer_stage), layer.get(edge.producer_stage) + 1));
  const places = new Map(), heights = [];
  for (const { stage } of [...stages].sort((a, b) => layer.get(a.stage) - layer.get(b.stage))) {
    const column = layer.get(stage);
    const before = edges.filter((edge) => edge.consumer_stage === stage).map((edge) => places.get(edge.producer_stage).y);
    const wanted = before.length ? before.reduce((a, b) => a + b, 0) / before.length : 0;
    const y = Math.max(wanted, heights[column] ?? 0);
    heights[column] = y + HEIGHT + GAP_Y;
    places.set(stage, { x: PAD + column * (WIDTH + GAP_X), y: y });
  }
  return places;
}

/** Draws a plan once, then only sets what changes. */
export class Graph {
  constructor(plan, choose) {
    const places = layout(plan.stages, plan.edges);
    const all = [...places.values()];
    const width = Math.max(...all.map((at) => at.x)) + WIDTH + PAD, height = Math.max(...all.map((at) => at.y)) + HEIGHT + 2 * PAD;
    this.edges = plan.edges.map((edge) => ({ ...edge, path: this.edge(places.get(edge.producer_stage), places.get(edge.consumer_stage)) }));
    this.nodes = new Map(plan.stages.map((stage) => [stage.stage, this.node(stage, places.get(stage.stage), choose)]));
    const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "graph of the job" });
    svg.append(...this.edges.map((edge) => edge.path), ...[...this.nodes.values()].map((node) => node.group));
    byId("graph").replaceChildren(svg);
  }

  edge(from, to) {
    const x = from.x + WIDTH, y = from.y + HEIGHT / 2 + PAD, toY = to.y + HEIGHT / 2 + PAD, half = (to.x - x) / 2;
    return draw("path", { class: "edge", d: `M${x} ${y} C${x + half} ${y} ${to.x - half} ${toY} ${to.x} ${toY}` });
  }

  node(stage, at, choose) {
    const text = (y, name) => draw("text", { x: 10, y, class: name });
    const bar = (y, name) => [draw("rect", { class: "track", x: 10, y, width: BAR, height: 5 }), draw("rect", { class: name, x: 10, y, width: 0, height: 5 })];
    const parts = { name: text(18, "name"), rate: text(34, "muted"), busyText: text(50, "muted"), blockedText: text(72, "muted"), title: draw("title") };
    const [busyTrack, busy] = bar(54, "busy"), [blockedTrack, blocked] = bar(76, "blocked");
    const group = draw("g", { class: "node", transform: `translate(${at.x} ${at.y + PAD})`, tabindex: 0, role: "button", "data-stage": stage.stage },
      parts.title, draw("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: 7 }), parts.name, parts.rate, parts.busyText, busyTrack, busy, parts.blockedText, blockedTrack, blocked);
    group.addEventListener("click", () => choose(stage.stage));
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(stage.stage); }
    });
    return { group, busy, blocked, ...parts };
  }

  /** Show a moment; `chosen` is the stage whose subtasks are listed. */
  show(status, chosen) {
    const held = new Map();
    for (const stage of status.stages) {
      const node = this.nodes.get(stage.stage);
      if (!node) continue;
      const most = (name) => Math.max(0, ...stage.subtasks.map((subtask) => subtask[name]));
      const busy = most("recent_busy_ratio"), blocked = most("recent_backpressured_ratio");
      const rate = stage.subtasks.reduce((sum, subtask) => sum + subtask.recent_records_in_per_second, 0);
      const isCulprit = status.headline.stage === stage.stage && status.headline.verdict === "limited";
      held.set(stage.stage, blocked >= HELD);
      say(node.name, short(`${stage.stage} ${stage.name}`));
      say(node.title, `stage ${stage.stage}: ${stage.name}`);
      say(node.rate, `${number(rate)} rows/s, ${stage.parallelism} subtask${stage.parallelism === 1 ? "" : "s"}`);
      say(node.busyText, `busy ${percent(busy)}${isCulprit ? " - limits the job" : ""}`);
      say(node.blockedText, `blocked ${percent(blocked)}`);
      set(node.busy, "width", Math.round(BAR * busy));
      set(node.blocked, "width", Math.round(BAR * blocked));
      set(node.group, "class", `node${isCulprit ? " culprit" : ""}${stage.stage === chosen ? " chosen" : ""}`);
      set(node.group, "aria-label", `stage ${stage.stage} ${stage.name}, busy ${percent(busy)}, blocked ${percent(blocked)}${isCulprit ? ", limits the job" : ""}`);
    }
    for (const edge of this.edges) set(edge.path, "class", held.get(edge.producer_stage) ? "edge held" : "edge");
  }
}

const short = (name) => (name.length > 24 ? `${name.slice(0, 23)}…` : name);
