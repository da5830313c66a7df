// Logs: what an engine wrote, of any of its attempts, as it writes it; what the site's own processes write.

import { list } from "../../base/api.js";
import { stateWord } from "../../base/badge.js";
import { byId } from "../../base/dom.js";
import { filterOf, setFilter } from "../../base/filters.js";
import { setChoices } from "../../base/form.js";
import { live } from "../../base/live.js";
import { LogView } from "../../base/log_view.js";
import { may } from "../../base/page_data.js";
import { t } from "../../base/texts.js";

const SITE = "site:"; // before a name of the site's own logs, in the place of an instance
const MOST_ENDED = 50;

const source = byId("source");
const attempt = byId("attempt");
const view = new LogView(byId("log"), t("shell.page.logs"));
/** @type {[string, string][]} */
const siteLogs = may("operate")
  ? [
      [`${SITE}supervisor`, t("logs.supervisor")],
      [`${SITE}web`, t("logs.web")],
    ]
  : [];
let followed = "";
let asked = "";
let hasEnded = false; // those that ended are known

/** @type {Record<string, any>[]} those that live first */
let instances = [];

function followChosen() {
  const address = addressOf(source.value);
  if (address === followed) return;
  followed = address;
  if (address) view.followAddress(address, `${source.value.replace(SITE, "")}.log`);
}

/** @param {string} chosen */
function addressOf(chosen) {
  if (!chosen) return "";
  if (chosen.startsWith(SITE)) return `/platform/v1/site-logs/${chosen.slice(SITE.length)}`;
  return `/platform/v1/logs/${encodeURIComponent(chosen)}${attempt.value ? `?attempt=${attempt.value}` : ""}`;
}

/** The first log and the newest are kept, and that of the first crash. */
function showAttempts() {
  const last = instances.find((one) => one.id === source.value)?.attempt ?? 0;
  byId("attempt-label").hidden = last < 2;
  setChoices(attempt, [
    ["", t("logs.newest")],
    ...(last > 1
      ? /** @type {[string, string][]} */ ([
          ["1", t("logs.attempt_number", { number: 1 })],
          ["first-crash", t("logs.first_crash")],
        ])
      : []),
  ]);
}

function showSources() {
  const before = source.value;
  setChoices(source, [
    ...instances.map(
      (one) => /** @type {[string, string]} */ ([one.id, `${one.deployment} · ${one.id} · ${stateWord(one.state)}`]),
    ),
    ...siteLogs,
  ]);
  const wanted = filterOf("source");
  if (!before && [...source.options].some((one) => one.value === wanted)) source.value = wanted;
  if (hasEnded && !source.options.length) view.place.empty(t("logs.nothing"));
  showAttempts();
  followChosen();
}

/** With those that ended, whose logs are still there. @param {Record<string, any>[]} living */
async function askEnded(living) {
  const all = await list("/platform/v1/instances?all=1").catch(() => living); // those that live are told anyway
  const ids = new Set(living.map((one) => one.id));
  const ended = all.filter((one) => !ids.has(one.id) && one.attempt > 0).reverse();
  instances = [...living, ...ended.slice(0, MOST_ENDED)];
  hasEnded = true;
  showSources();
}

source.addEventListener("change", () => {
  setFilter("source", source.value);
  attempt.value = "";
  showAttempts();
  followChosen();
});
attempt.addEventListener("change", followChosen);
live.objects("instances", (all) => {
  const key = [...all.values()].map((one) => `${one.id} ${one.state} ${one.attempt}`).join();
  if (key === asked) return;
  asked = key;
  askEnded([...all.values()]);
});
