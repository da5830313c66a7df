// Playground: talk to a model, or to two at once, and see how fast each token came and how sure the model was.

import { download } from "../../base/csv.js";
import { byId } from "../../base/dom.js";
import { filterOf, setFilter } from "../../base/filters.js";
import { get } from "../../base/api.js";
import { live } from "../../base/live.js";
import { may } from "../../base/page_data.js";
import { t } from "../../base/texts.js";
import { Column } from "./column.js";
import { showCode } from "./code.js";
import { Settings } from "./settings.js";

const EVERY_MS = 10_000; // who may not read the site asks which models are ready

const settings = new Settings(byId("settings"));
const columns = [new Column(0, settings, changed)];
const message = byId("message");
const compare = byId("compare");

/** Buttons follow what runs. */
function changed() {
  const isRunning = columns.some((one) => one.isRunning);
  byId("stop").hidden = !isRunning;
  byId("send").hidden = isRunning;
  byId("send").disabled = !columns.some((one) => one.model);
  setFilter("model", columns[0].model);
}

function send() {
  const text = message.value.trim();
  if (!text || columns.some((one) => one.isRunning) || !columns.some((one) => one.model)) return;
  const problem = settings.problem();
  byId("composer-note").textContent = problem ?? t("playground.keys");
  if (problem) return;
  message.value = "";
  grow();
  for (const column of columns) column.ask(text);
}

const stop = () => columns.forEach((one) => one.stop());

function grow() {
  message.style.height = "auto";
  message.style.height = `${Math.min(message.scrollHeight + 2, 240)}px`;
}

function toggleCompare() {
  if (columns.length === 1) columns.push(new Column(1, settings, changed, columns[0].messages));
  else columns.pop()?.remove();
  compare.setAttribute("aria-pressed", String(columns.length === 2));
  setFilter("compare", columns.length === 2 ? "1" : "");
  showModels();
}

/** @type {any[]} */
let models = [];

async function showModels() {
  const found = await get("/v1/models").catch(() => null); // the next look may succeed
  if (found) models = found.data.filter((/** @type {any} */ one) => one.model_type === "LLM");
  columns.forEach((one) => one.showModels(models));
  changed();
}

byId("composer").addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
  event.preventDefault();
  send();
});
message.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
  const isSend = event.key === "Enter" && !event.shiftKey && !event.isComposing;
  if (!isSend) return;
  event.preventDefault();
  send();
});
message.addEventListener("input", grow);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) stop();
});
byId("stop").addEventListener("click", stop);
compare.addEventListener("click", toggleCompare);
byId("clear").addEventListener("click", () => columns.forEach((one) => one.clear()));
byId("view-code").addEventListener("click", () => showCode(columns[0].body(message.value.trim())));
byId("export").addEventListener("click", () =>
  download(
    "conversation.json",
    "application/json",
    JSON.stringify(
      columns.map((one) => one.exported()),
      null,
      2,
    ),
  ),
);

if (filterOf("compare")) toggleCompare();
else showModels();
if (may("read")) live.objects("instances", () => showModels());
else setInterval(() => document.hidden || showModels(), EVERY_MS);
if (matchMedia("(max-width: 1000px)").matches) byId("settings-details").open = false;
message.focus();
