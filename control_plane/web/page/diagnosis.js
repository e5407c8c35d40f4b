// What processes do inside: a profile of a stage as a flame graph and in words, and the ends of logs.

import { profile } from "./actions.js";
import { byId, draw, make, say, set } from "./dom.js";
import { clock, number, percent } from "./format.js";

const WIDTH = 1000, ROW = 18, LETTER = 6.4;
const OWN = "control plane";

/** Show the latest profile; null: none was asked for. */
export function showProfile(found) {
  byId("profile-part").hidden = found === null;
  if (found === null) return;
  const many = `${found.subtasks} subtask${found.subtasks === 1 ? "" : "s"}`;
  const how = {
    RUNNING: `looks for ${number(found.seconds)} s since ${clock(found.started_ms)} ...`,
    DONE: `${number(found.seconds)} s from ${clock(found.started_ms)}, ${number(found.samples)} looks at ${many}${found.cause ? `; ${found.cause}` : ""}`,
    FAILED: `failed: ${found.cause}`,
  }[found.state];
  say(byId("profile-of"), `Stage ${found.stage} ${found.name}: ${how}`);
  byId("profile-words").replaceChildren(...found.words.map((text) => make("li", {}, text)));
  byId("flame").replaceChildren(...(found.boxes.length ? [flame(found)] : []));
}

/** The boxes as a drawing: what called is above what it called. */
function flame({ boxes, samples, words }) {
  const height = (Math.max(...boxes.map((box) => box.depth)) + 1) * ROW, scale = WIDTH / samples;
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${height}`, width: "100%", class: "flame", role: "img", "aria-label": `flame graph: ${words.join("; ")}` });
  for (const box of boxes) {
    const width = box.width * scale, letters = Math.floor((width - 6) / LETTER);
    const text = letters < 3 ? "" : box.name.length > letters ? `${box.name.slice(0, letters - 1)}…` : box.name;
    svg.append(draw("g", { transform: `translate(${(box.start * scale).toFixed(2)} ${box.depth * ROW})` },
      draw("title", {}, `${box.name}: ${percent(box.width / samples)}${box.place ? `, ${box.place}` : ""}`),
      draw("rect", { class: box.kind, width: Math.max(width - 0.5, 0.5).toFixed(2), height: ROW - 1 }),
      draw("text", { x: 3, y: ROW - 5 }, text)));
  }
  return svg;
}

/** Let the button at a stage ask for a profile of it; `stage` returns the one that is chosen. */
export function wireProfile(stage) {
  byId("profile").addEventListener("click", () => { const chosen = stage(); if (chosen) profile(chosen); });
}

/** Whose log is shown; the addresses of task managers change. */
export function showLogChoice(status) {
  const select = byId("log-of"), names = [OWN, ...status.task_managers.map((it) => it.address)];
  if ([...select.options].map((it) => it.value).join() === names.join()) return;
  const before = select.value;
  select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  select.value = names.includes(before) ? before : OWN;
}

let isAsking = false;

/** Show the end of the chosen log, if it is open; it stays where somebody has scrolled to. */
export async function showLog() {
  if (isAsking || !byId("log-part").open) return;
  isAsking = true;
  const of = byId("log-of").value || OWN, log = byId("log");
  try {
    const reply = await fetch(of === OWN ? "/logs" : `/logs?${new URLSearchParams({ task_manager: of })}`);
    const answer = await reply.json();
    const isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    say(log, reply.ok ? answer.entries.join("\n") : answer.error);
    set(log, "data-of", of);
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  } catch { /* The line at the top says that nobody answers. */ } finally { isAsking = false; }
}
