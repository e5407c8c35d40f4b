// What changes the job. Each asks first, and says what the control plane answered.

import { byId, make, say } from "./dom.js";

/** Ask whether to do it; resolves to false, or true, or the path that was asked for. */
function ask(question, consequence, path = null) {
  const dialog = byId("dialog"), input = byId("path");
  say(byId("question"), question);
  say(byId("consequence"), consequence);
  byId("path-label").hidden = path === null;
  input.value = path ?? "";
  dialog.returnValue = "no";
  dialog.showModal();
  (path === null ? byId("no") : input).focus();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" && (path === null || input.value.trim())), { once: true }));
}

let hides = 0;

/** Say something at the bottom of the page, for some seconds. */
function tell(text) {
  say(byId("told"), text);
  clearTimeout(hides);
  hides = setTimeout(() => say(byId("told"), ""), 12_000);
}

async function post(path, parameters, done) {
  const query = new URLSearchParams(parameters);
  try {
    const reply = await fetch(`${path}?${query}`, { method: "POST" });
    const answer = await reply.json();
    tell(reply.ok ? done(answer) : `refused: ${answer.error}`);
  } catch (error) {
    tell(`the control plane does not answer: ${error.message}`);
  }
}

/** More or fewer subtasks of a stage. */
export async function scale(stage, parallelism) {
  const what = `${parallelism} subtask${parallelism === 1 ? "" : "s"}`;
  const how = stage.keyed || stage.stage ? "The job goes on meanwhile; key groups move to other subtasks." : "";
  if (await ask(`Scale stage ${stage.stage} ${stage.name} from ${stage.parallelism} to ${what}?`, how || "A source is scaled by a checkpoint and a new deployment, which takes as long as a restart."))
    await post("/scale", { stage: stage.stage, parallelism }, (answer) => `rescale ${answer.rescale} has begun`);
}

/** Look where the threads of a stage are. */
export async function profile(stage) {
  if (await ask(`Profile stage ${stage.stage} ${stage.name} for 10 seconds?`, "Its task managers look a hundred times a second where its threads are, which takes a few per cent of their time. The job goes on."))
    await post("/profile", { stage: stage.stage, seconds: 10 }, (answer) => `profile ${answer.profile} is being made: 10 s`);
}

/** Empty a task manager; returns its button. */
export function drainButton(address) {
  const button = make("button", { type: "button" }, "Drain ...");
  button.addEventListener("click", async () => {
    if (await ask(`Drain task manager ${address}?`, "Its subtasks move to other task managers, stage by stage. When it is EMPTY it can be stopped."))
      await post("/drain", { task_manager: address }, (answer) => `task manager ${address}: ${answer.state}`);
  });
  return button;
}

/** Let the three buttons at the top do what they say; `job` returns the name of the job. */
export function wireActions(job) {
  const place = () => `savepoints/${job()}-${new Date().toISOString().slice(0, 19).replaceAll(":", "-")}`;
  byId("savepoint").addEventListener("click", async () => {
    const path = await ask("Make a savepoint?", "A checkpoint that is kept for ever, with everything it needs. The job goes on.", place());
    if (path) await post("/savepoint", { path }, (answer) => `savepoint ${answer.id} is being made at ${answer.path}`);
  });
  byId("stop").addEventListener("click", async () => {
    const savepoint = await ask("Stop the job with a savepoint?", "Nothing is delivered that the savepoint does not cover. A job that starts from it goes on with the next row.", place());
    if (savepoint) await post("/stop", { savepoint }, (answer) => `the job stops when savepoint ${answer.id} is complete`);
  });
  byId("cancel").addEventListener("click", async () => {
    if (await ask("Cancel the job?", "It ends at once and delivers nothing more. Its latest checkpoints stay."))
      await post("/cancel", {}, (answer) => `the job is ${answer.state}`);
  });
}
