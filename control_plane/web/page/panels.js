// Tables and the strip of checkpoints: from what the control plane says to what is seen.

import { drainButton } from "./actions.js";
import { byId, fill, make, say, set } from "./dom.js";
import { bytes, clock, number, percent, time } from "./format.js";

/** Of more subtasks nobody reads all. */
const MANY = 16;
/** Keys that are named, and what the hottest one must have of the rows. */
const HOT_KEYS = 3, HOT_SHARE = 0.05;
const column = (title, text, more = {}) => ({ title, text, ...more });
const figure = (title, text) => column(title, text, { number: true });

const SUBTASKS = [
  column("subtask", (it) => String(it.subtask_index)),
  column("task manager", (it) => it.task_manager),
  column("state", (it) => it.state + (it.restoring_groups ? `, restores ${it.restoring_groups} groups` : "")),
  figure("busy", (it) => percent(it.recent_busy_ratio)),
  figure("blocked", (it) => percent(it.recent_backpressured_ratio)),
  figure("rows in/s", (it) => number(it.recent_records_in_per_second)),
  figure("rows in", (it) => number(it.records_in)),
  figure("rows out", (it) => number(it.records_out)),
  figure("rows wait", (it) => number(it.queued_rows)),
  figure("oldest waits", (it) => time(it.queued_age_ms)),
  figure("event time behind", (it) => time(it.watermark_lag_ms)),
  column("hottest key group", (it) => (it.hot_group === null ? "-" : `${it.hot_group}: ${percent(it.hot_group_share)} of its rows`)),
];

const MANAGERS = [
  column("address", (it) => it.address),
  figure("subtasks", (it) => `${it.subtasks} of ${it.operator_quota}`),
  figure("memory", (it) => (it.resident_bytes ? bytes(it.resident_bytes) : "-")),
  figure("disk free", (it) => (it.disk_bytes ? `${bytes(it.disk_free_bytes)} of ${bytes(it.disk_bytes)}` : "-")),
  figure("write stalls", (it) => (it.write_stalls ? `${number(it.write_stalls)}, together ${time(it.write_stall_ms)}` : "none")),
  figure("last heard", (it) => `${time(it.heartbeat_age_ms)} ago`),
  column("waits for", (it) => it.waits_for || "-", { long: true }),
  column("", (it) => it.address, { make: (it) => drainButton(it.address) }),
];

const LOST = [
  column("step", (it) => it.step),
  column("what", (it) => it.what),
  figure("rows", (it) => number(it.rows)),
  column("the first one", (it) => it.reason, { long: true }),
  column("where they are", (it) => it.where, { long: true }),
];

const HAPPENED = [
  column("at", (it) => clock(it.time_ms)),
  column("what", (it) => it.kind),
  column("", (it) => it.text, { long: true }),
];

/** Rows that did not make it, of each step. */
export function lostRows(status) {
  const rejected = status.rejected.map((it) => ({
    step: it.step,
    what: it.kind === "source" ? "rejected" : "put aside",
    rows: it.rejected,
    reason: it.first_reason + (it.first_source ? ` (${it.first_source} at ${it.first_position})` : ""),
    where: it.dead_letters,
  }));
  const late = Object.entries(status.totals.rows_late).map(([step, rows]) => ({ step, what: "late", rows, reason: "its window or join had been told already", where: "dropped" }));
  return [...rejected, ...late];
}

/** Of few subtasks all, by number; of many the busiest first, and how the others are. */
export function showSubtasks(stage) {
  const all = stage ? stage.subtasks : [], busiest = [...all].sort((a, b) => b.recent_busy_ratio - a.recent_busy_ratio || a.subtask_index - b.subtask_index);
  const isMany = all.length > MANY, at = (part) => percent(busiest[Math.floor((busiest.length - 1) * part)].recent_busy_ratio);
  say(byId("subtasks-order"), isMany ? `${all.length} subtasks, the busiest first: it is ${at(0)} busy, half of them are ${at(0.5)} or less, the idlest is ${at(1)}.` : "");
  const keys = stage?.recent_hot_keys.slice(0, HOT_KEYS) ?? [], isHot = keys.length && keys[0].share >= HOT_SHARE;
  say(byId("hot-keys"), isHot ? `Hottest keys of the last seconds: ${keys.map((it) => `${it.key} has ${percent(it.share)} of the rows (key group ${it.group})`).join(", ")}.` : "");
  const remote = stage?.remote_groups ?? 0;
  say(byId("state-places"), remote ? `The state of ${remote} key group${remote === 1 ? "" : "s"} is still in stores of earlier owners.` : "");
  fill(byId("subtasks"), SUBTASKS, isMany ? busiest : all);
}

export function showManagers(status, drains) {
  byId("managers-none").hidden = status.task_managers.length > 0;
  fill(byId("managers"), MANAGERS, status.task_managers);
  for (const row of byId("managers").tBodies[0].rows) {
    const drain = drains.find((it) => it.startsWith(`${row.cells[0].textContent} `));
    say(row.lastChild.firstChild, drain ? drain.split(" ").at(-1) : "Drain ...");
  }
}

export function showLost(status) {
  const rows = lostRows(status);
  byId("lost-none").hidden = rows.length > 0;
  fill(byId("lost"), LOST, rows);
}

export function showHappened(marks, rescales, decisions) {
  const told = rescales.map((it) => ({ time_ms: it.started_ms, kind: "rescale", text: `${it.id}: stage ${it.stage} from ${it.from} to ${it.to} subtasks, ${it.phase}${it.cause ? `: ${it.cause}` : ""}, ${it.groups_owned} of ${it.groups_total} key groups moved` }));
  const decided = decisions.map((it) => ({ time_ms: it.time_ms, kind: "autoscaler", text: it.text }));
  const others = [...marks.filter((mark) => mark.kind !== "rescale"), ...decided];
  byId("happened-none").hidden = told.length + others.length > 0;
  fill(byId("happened"), HAPPENED, [...told, ...others].sort((a, b) => b.time_ms - a.time_ms).slice(0, 50));
}

/** What a checkpoint did with its time; empty: it did not come so far. */
function phases(it) {
  if (it.parts_duration_ms === null) return "";
  const last = it.slowest ? `, the last one of ${it.slowest},` : "";
  return `${time(it.parts_duration_ms)} until all parts were there${last}${it.commit_duration_ms === null ? "" : ` and ${time(it.commit_duration_ms)} to write it down`}`;
}

/** checkpoints: newest first, the last 60. */
export function showCheckpoints(checkpoints, status) {
  const oldestFirst = [...checkpoints].reverse();
  const longest = Math.max(1, ...oldestFirst.map((it) => it.duration_ms ?? 0));
  const strip = byId("strip");
  while (strip.children.length > oldestFirst.length) strip.lastChild.remove();
  oldestFirst.forEach((it, index) => {
    const bar = strip.children[index] ?? strip.appendChild(make("span"));
    const isBad = it.state === "FAILED" || it.state === "ABORTED", isOpen = it.ended_ms === null;
    const text = `${it.kind} ${it.id} ${it.state}${isOpen ? "" : ` at ${clock(it.ended_ms)} in ${time(it.duration_ms)}, ${bytes(it.new_bytes)} new of ${bytes(it.size_bytes)}`}${phases(it) ? `: ${phases(it)}` : ""}${it.cause ? `: ${it.cause}` : ""}`;
    set(bar, "class", isBad ? "bad" : isOpen ? "open" : it.kind);
    set(bar, "title", text), set(bar, "role", "img"), set(bar, "aria-label", text);
    bar.style.height = `${Math.max(8, Math.round(((it.duration_ms ?? 0) / longest) * 100))}%`;
  });
  const latest = checkpoints.find((it) => it.ended_ms !== null);
  const failed = checkpoints.filter((it) => it.state === "FAILED").length;
  const parts = latest ? [`latest: ${latest.kind} ${latest.id} ${latest.state} at ${clock(latest.ended_ms)} in ${time(latest.duration_ms)}, ${bytes(latest.new_bytes)} new`] : ["none yet"];
  if (latest && phases(latest)) parts.push(phases(latest));
  if (checkpoints.length) parts.push(`${failed} of the last ${checkpoints.length} failed, the highest bar took ${time(longest)}`);
  if (status.checkpoint_waits_for) parts.push(status.checkpoint_waits_for);
  say(byId("checkpoint-latest"), parts.join("; "));
}
