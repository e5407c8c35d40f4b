// The page: history when it is opened, then a moment each second; asks for lists when they have changed.

import { scale, wireActions } from "./actions.js";
import { Chart, niceTime } from "./charts.js";
import { showLog, showLogChoice, showProfile, wireProfile } from "./diagnosis.js";
import { byId, make, say, set } from "./dom.js";
import { clock, number, percent, rate, time } from "./format.js";
import { Graph } from "./graph.js";
import { showCheckpoints, showHappened, showLost, showManagers, showSubtasks } from "./panels.js";

/** As the control plane keeps: an hour. */
const SPAN_MAX_MS = 3_600_000;
const CHECKPOINTS_MAX = 60;
const FINAL = ["FINISHED", "FAILED", "CANCELLED", "STOPPED"];

const state = { status: null, chosen: null, hasChosen: false, graph: null, times: [], columns: {}, marks: [], checkpoints: [], rescales: [], asked: {}, lost: 0 };

const charts = {
  rate: new Chart(byId("charts"), "Rows read per second", rate),
  latency: new Chart(byId("charts"), "Latency: from reading a row to its end", time, { nice: niceTime }),
  busy: new Chart(byId("charts"), "Busy: the busiest subtask", percent, { top: 1, isShare: true }),
  blocked: new Chart(byId("charts"), "Blocked by the steps after it", percent, { top: 1, isShare: true }),
  lag: new Chart(byId("charts"), "Event time behind the clock", time, { nice: niceTime }),
  rows: new Chart(byId("charts"), "Rows into each stage per second", rate),
};

/** Of a report, all that the page would ask for; null: this is the page of a job. */
const kept = JSON.parse(byId("report")?.textContent ?? "null");

async function get(path) {
  if (kept) return kept[path];
  const reply = await fetch(path);
  // The token has ended, or is another one.
  if (reply.status === 401) location.assign("/login");
  if (!reply.ok) throw new Error(`${path}: ${reply.status}`);
  return reply.json();
}

/** Ask again for what has changed, one question at a time for each. */
async function refresh(name, version, path, take) {
  const key = JSON.stringify(version);
  if (state.asked[name] === key) return;
  state.asked[name] = key;
  try { take(await get(path)); } catch { delete state.asked[name]; }
}

function addPoint({ time_ms, values }) {
  if (time_ms === null || time_ms <= (state.times.at(-1) ?? 0)) return;
  state.times.push(time_ms);
  for (const [name, value] of Object.entries(values)) {
    state.columns[name] ??= Array(state.times.length - 1).fill(null);
    state.columns[name].push(value);
  }
  const old = state.times.findIndex((at) => at >= time_ms - SPAN_MAX_MS);
  // Not with each point: all columns are moved.
  if (old > 60) {
    state.times.splice(0, old);
    for (const column of Object.values(state.columns)) column.splice(0, old);
  }
}

function showCharts() {
  const span = Number(byId("span").value), { times, columns, marks, status } = state;
  const column = (name) => columns[name] ?? [];
  const byStage = (name) => status.stages.map((stage) => ({ name: `${stage.stage} ${stage.name}`, values: column(`${name}/${stage.stage}`) }));
  const known = (series) => series.filter(({ values }) => values.some((value) => value !== null));
  charts.rate.show(times, [{ name: "all sources", values: column("rows_per_s") }], marks, span);
  charts.latency.show(times, [{ name: "half of the rows", values: column("latency_p50_ms") }, { name: "99 %", values: column("latency_p99_ms") }], marks, span);
  charts.busy.show(times, byStage("busy"), marks, span);
  charts.blocked.show(times, byStage("blocked"), marks, span);
  charts.lag.show(times, known(byStage("watermark_lag_ms")), marks, span);
  charts.rows.show(times, byStage("rows_in_per_s"), marks, span);
}

function showHead(status) {
  document.title = `${status.job}: ${status.headline.verdict.replace("_", " ")}`;
  say(byId("job"), status.job);
  say(byId("state"), status.state);
  set(byId("state"), "title", status.state_meaning);
  say(byId("headline"), status.headline.text);
  set(byId("headline"), "data-verdict", status.headline.verdict);
  const restarts = status.restarts ? `${status.restarts} restart${status.restarts === 1 ? "" : "s"}${status.restart_cause ? `, the last one: ${status.restart_cause}` : ""}. ` : "";
  say(byId("cause"), restarts + `${number(status.totals.events_in)} rows read, ${number(status.totals.events_out)} rows delivered to sinks.`);
  byId("autoscaler").hidden = !status.autoscaler?.enabled;
  say(byId("autoscaler"), `autoscaler: ${status.autoscaler?.text ?? ""}`);
  say(byId("identity"), `job ${status.job_id}, generation ${status.generation}, started ${clock(status.started_ms)}`);
  for (const id of ["savepoint", "stop", "cancel", "more", "fewer", "profile"]) byId(id).disabled = FINAL.includes(status.state);
}

function showStage(status) {
  const select = byId("stage");
  if (select.options.length !== status.stages.length)
    select.replaceChildren(...status.stages.map((stage) => make("option", { value: stage.stage }, `${stage.stage} ${stage.name}`)));
  // Until a stage is chosen, the one that limits is shown.
  if (!state.hasChosen) state.chosen = status.headline.stage ?? state.chosen ?? status.stages[0]?.stage;
  select.value = String(state.chosen);
  const stage = selected();
  showSubtasks(stage);
  byId("fewer").disabled ||= !stage || stage.parallelism < 2;
}

function show() {
  const { status } = state;
  if (!status) return;
  showHead(status);
  showStage(status);
  state.graph?.show(status, state.chosen);
  showLost(status);
  showCheckpoints(state.checkpoints, status);
  showHappened(state.marks, state.rescales, status.autoscaler?.decisions ?? []);
  showCharts();
}

function take(moment) {
  state.status = moment.status;
  const known = new Set(state.marks.map((mark) => `${mark.time_ms} ${mark.text}`));
  state.marks.push(...moment.marks.filter((mark) => !known.has(`${mark.time_ms} ${mark.text}`)));
  const newest = moment.checkpoints, oldest = newest.at(-1)?.id ?? Infinity;
  state.checkpoints = [...newest, ...state.checkpoints.filter((it) => it.id < oldest)].slice(0, CHECKPOINTS_MAX);
  addPoint(moment.point);
  show();
  showManagers(moment.status, moment.drains_at);
  showLogChoice(moment.status);
  if (!kept) showLog();
  refresh("plan", moment.status.fingerprint, "/plan", (plan) => { state.graph = new Graph(plan, choose); state.plan = plan; show(); });
  refresh("checkpoints", moment.status.job_id, "/checkpoints", (list) => { state.checkpoints = list; show(); });
  if (moment.profile_at.length) refresh("profile", moment.profile_at, "/profile", showProfile);
  refresh("rescales", moment.rescales_at, "/rescales", (list) => { state.rescales = list; show(); });
}

function choose(stage) {
  state.chosen = Number(stage);
  state.hasChosen = true;
  show();
}

let source = null;

function listen() {
  source = new EventSource("/live");
  source.onmessage = (event) => {
    state.lost = 0;
    say(byId("connection"), "");
    take(JSON.parse(event.data));
  };
  source.onerror = () => {
    state.lost ||= Date.now();
    say(byId("connection"), `no word from the control plane since ${clock(state.lost)}`);
    // The browser tries again by itself, unless it was refused.
    if (source.readyState === EventSource.CLOSED) setTimeout(begin, 2_000);
  };
}

async function begin() {
  if (kept) {
    for (const id of ["actions", "more", "fewer", "profile", "log-section"]) byId(id).hidden = true;
    say(byId("connection"), `report of ${new Date(kept["/live"].point.time_ms ?? 0).toLocaleString("en-GB")}`);
    const { times_ms, columns, marks } = kept["/history"];
    Object.assign(state, { times: times_ms, columns, marks });
    take(kept["/live"]);
    return;
  }
  source?.close();
  state.asked = {};
  try {
    const history = await get("/history");
    Object.assign(state, { times: history.times_ms, columns: history.columns, marks: history.marks });
  } catch { /* What is live will come, and say if nothing does. */ }
  listen();
}

const selected = () => state.status?.stages.find((it) => it.stage === state.chosen);
byId("more").addEventListener("click", () => { const stage = selected(); if (stage) scale(stage, stage.parallelism + 1); });
byId("fewer").addEventListener("click", () => { const stage = selected(); if (stage) scale(stage, stage.parallelism - 1); });
byId("stage").addEventListener("change", (event) => choose(event.target.value));
byId("span").addEventListener("change", show);
wireProfile(selected);
for (const name of ["log-part", "log-of"]) byId(name).addEventListener(name === "log-of" ? "change" : "toggle", showLog);
wireActions(() => state.status?.job ?? "job");

for (const [id, load] of [["parameters", async () => state.status?.parameters], ["plan", () => get("/plan")], ["configuration", () => get("/configuration")]])
  byId(id).addEventListener("toggle", async () => {
    if (byId(id).open) say(byId(id).querySelector("pre"), JSON.stringify(await load(), null, 2));
  });

// A page that nobody sees asks for nothing.
if (!kept) document.addEventListener("visibilitychange", () => (document.hidden ? source?.close() : begin()));
begin();
