// Logs: what an engine wrote, of any of its attempts, as it writes it.

import { byId } from "../../base/dom.js";
import { filterOf, setFilter } from "../../base/filters.js";
import { setChoices } from "../../base/form.js";
import { live } from "../../base/live.js";
import { LogView } from "../../base/log_view.js";
import { stateWord } from "../../base/badge.js";
import { t } from "../../base/texts.js";

const source = byId("source");
const attempt = byId("attempt");
const view = new LogView(byId("log"), t("shell.page.logs"));
let followed = "";

/** @type {Map<string, Record<string, any>>} */
let instances = new Map();

function followChosen() {
  const address = source.value && `/platform/v1/logs/${encodeURIComponent(source.value)}${attempt.value ? `?attempt=${attempt.value}` : ""}`;
  if (address === followed) return;
  followed = address;
  if (address) view.followAddress(address, `${source.value}.log`);
}

function showAttempts() {
  const last = instances.get(source.value)?.attempt ?? 0;
  const earlier = Array.from({ length: Math.max(0, last - 1) }, (_, index) => String(last - 1 - index)).slice(0, 5);
  setChoices(attempt, [["", t("logs.newest")], ...earlier.map((one) => /** @type {[string, string]} */ ([one, t("logs.attempt_number", { number: one })])), ...(last > 1 ? [/** @type {[string, string]} */ (["first-crash", t("logs.first_crash")])] : [])]);
}

source.addEventListener("change", () => {
  setFilter("source", source.value);
  showAttempts();
  followChosen();
});
attempt.addEventListener("change", followChosen);
live.objects("instances", (all) => {
  instances = all;
  setChoices(source, [...all.values()].map((one) => /** @type {[string, string]} */ ([one.id, `${one.deployment} · ${one.id} · ${stateWord(one.state)}`])));
  if (!all.size) view.place.empty(t("logs.nothing"));
  if (!followed && all.has(filterOf("source"))) source.value = filterOf("source");
  showAttempts();
  followChosen();
});
