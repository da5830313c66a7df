// What runs on every page: the live badge, theme, language links, keyboard and palette.

import { live } from "../base/live.js";
import { byId, setAttribute, setText } from "../base/dom.js";
import { may } from "../base/page_data.js";
import { duration } from "../base/format.js";
import { t } from "../base/texts.js";
import { listenToKeys } from "./keys.js";

const YEAR_S = 365 * 24 * 3600;

function showLive() {
  const badge = byId("live");
  live.onStatus((status, retryMs) => {
    badge.hidden = false;
    setAttribute(badge, "class", `badge ${status === "live" ? "ok" : "warn"}`);
    setText(
      badge,
      status === "live" ? t("shell.live") : t("shell.reconnecting", { time: duration(Math.round(retryMs / 1000)) }),
    );
  });
}

/** What is shown is old while the supervisor is silent: everything else depends on it. */
function showSupervisor() {
  const banner = byId("banner");
  live.objects("site", (all) => {
    const site = all.get("site");
    banner.hidden = !site || site.supervisor.up;
    setText(banner, t("shell.no_supervisor"));
  });
}

function setTheme() {
  const select = byId("theme");
  select.addEventListener("change", () => {
    if (select.value) document.documentElement.dataset.theme = select.value;
    else delete document.documentElement.dataset.theme;
    document.cookie = `trivet_theme=${select.value}; path=/; max-age=${YEAR_S}; samesite=lax`;
  });
}

/** What was talked of here is for nobody who comes after. */
function forgetAtLogout() {
  document.querySelector('form[action="/logout"]')?.addEventListener("submit", () => {
    for (const key of Object.keys(localStorage))
      if (key.startsWith("trivet-conversation")) localStorage.removeItem(key);
  });
}

/** The address keeps its filters when the language changes. */
function keepQuery() {
  for (const link of document.querySelectorAll("a[data-language]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const query = new URLSearchParams(location.search);
      query.set("language", /** @type {HTMLElement} */ (link).dataset.language ?? "en");
      location.search = query.toString();
    });
  }
  const query = new URLSearchParams(location.search);
  if (!query.has("language")) return;
  query.delete("language"); // it is remembered in a cookie
  history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
}

keepQuery();
setTheme();
forgetAtLogout();
listenToKeys();
if (may("read")) {
  showLive();
  showSupervisor();
}
