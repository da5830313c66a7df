// Wires the page: one poller feeds every part.

import { ApiError, setToken, takeTokenFromAddress } from "./api.js";
import { Chat } from "./chat.js";
import { TimeChart } from "./chart.js";
import { Devices } from "./devices.js";
import { byId, setClass, setText } from "./dom.js";
import { Events } from "./events.js";
import { rate, time } from "./format.js";
import { Instances } from "./instances.js";
import { Launch } from "./launch.js";
import { Poller } from "./poller.js";
import { Rates } from "./rates.js";
import { Tiles } from "./tiles.js";

const CHART_SPAN_MS = 5 * 60 * 1000;

takeTokenFromAddress();

const rates = new Rates();
const tiles = new Tiles();
const events = new Events();
const devices = new Devices();
const chat = new Chat();
const launch = new Launch(() => poller.now());
const instances = new Instances({ onLaunch: () => launch.open(), onChanged: () => poller.now() });
const now = byId("throughput-now");
const chart = new TimeChart(byId("throughput"), CHART_SPAN_MS, (point) =>
  setText(now, point ? `${rate(point.value)} at ${time(point.at)}` : ""),
);
let lastAt = 0;

const poller = new Poller(
  (state) => {
    lastAt = state.at;
    rates.add(state.instances, state.at);
    tiles.show(state, rates.total());
    chart.add(state.at, rates.total());
    instances.show(state, rates);
    devices.show(state);
    events.show(state);
    launch.show(state);
    chat.show(state);
    showConnection("Live", "ok");
    const { up, as_of: asOf } = state.status.supervisor;
    const since = asOf ? ` since ${time(asOf)}` : "";
    showBanner(up ? "" : `The supervisor has not answered${since}. Engines go on serving; their states are old.`);
    lock(false);
  },
  (error) => {
    if (error instanceof ApiError && error.status === 401) return askForToken(error);
    showConnection(lastAt ? "Reconnecting" : "Offline", "bad");
    showBanner(`${error.message}. Trying again.`);
    return instances.showStale(lastAt);
  },
);

function showConnection(text, kind) {
  setText(byId("connection"), text);
  setClass(byId("connection"), `pill ${kind}`);
}

function showBanner(text) {
  const banner = byId("banner");
  setText(banner, text);
  banner.hidden = !text;
}

function lock(isLocked) {
  byId("token-form").hidden = !isLocked;
  byId("main").hidden = isLocked;
  byId("launch-open").hidden = isLocked;
}

function askForToken(error) {
  const form = byId("token-form");
  const wasLocked = !form.hidden;
  showConnection("Locked", "warn");
  showBanner("");
  lock(true);
  if (wasLocked) {
    if (!form.dataset.used) return;
    setText(byId("token-error"), error.message);
    byId("token-error").hidden = false;
    return;
  }
  byId("token").focus();
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  event.target.dataset.used = "yes";
  setToken(byId("token").value);
  poller.now();
});

// The link of `trivet serve`, opened in the tab that waits for it: only the hash changes, nothing is loaded.
addEventListener("hashchange", () => {
  takeTokenFromAddress();
  poller.now();
});

byId("launch-open").addEventListener("click", () => launch.open());

const theme = byId("theme");
theme.value = document.documentElement.dataset.theme ?? "";
theme.addEventListener("change", () => {
  if (theme.value) {
    document.documentElement.dataset.theme = theme.value;
    localStorage.setItem("trivet-theme", theme.value);
  } else {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("trivet-theme");
  }
  chart.draw();
});

poller.now();
