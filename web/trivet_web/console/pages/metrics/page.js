// Metrics: all figures over time. A drag over a chart looks closer at that time in all of them.

import { codeBlock } from "../../base/copy.js";
import { downloadCsv } from "../../base/csv.js";
import { byId, h, icon } from "../../base/dom.js";
import { FigureHistory } from "../../base/figure_history.js";
import { bindFilter, filterOf, setFilter } from "../../base/filters.js";
import { select, setChoices } from "../../base/form.js";
import { live } from "../../base/live.js";
import { TimeChart, TimeGroup } from "../../base/charts/time_chart.js";
import { errorBox } from "../../base/states.js";
import { t } from "../../base/texts.js";
import { CHARTS, NAMES } from "./charts.js";
import { shownSeries } from "./shown_series.js";

const SPANS_S = [300, 900, 3600, 21_600, 86_400];
const COARSE_MS = 15_000; // beyond a quarter of an hour the server has a sample in 15 s

const group = new TimeGroup();
const places = new Map(CHARTS.map((kind) => [kind.name, h("section", { class: "card" })]));
byId("charts").append(...places.values());
const charts = CHARTS.map((kind) => ({
  kind,
  chart: new TimeChart(/** @type {HTMLElement} */ (places.get(kind.name)), {
    title: t(`metrics.chart.${kind.name}`),
    file: kind.name,
    group,
    format: kind.format,
    isStacked: kind.isStacked,
    least: kind.least,
  }),
}));

let history = new FigureHistory(NAMES, 300);
/** @type {[number, number] | null} that is looked at closer, in milliseconds */
let closer = null;
let deployment = "";

/** @param {Record<string, string>} labels */
const picks = (labels) => !deployment || labels.model_name === undefined || labels.model_name === deployment;

function draw() {
  const times = history.times.map((at) => at * 1000);
  const end = times[times.length - 1] ?? Date.now();
  const span = closer ?? [end - history.spanS * 1000, end];
  for (const { kind, chart } of charts) {
    const found = shownSeries([...kind.read(history, picks, deployment)], kind.isStacked, t("metrics.others"));
    const place = /** @type {HTMLElement} */ (places.get(kind.name));
    place.hidden = !found.length;
    const inside = times
      .map((at, index) => (at >= span[0] && at <= span[1] ? index : -1))
      .filter((index) => index >= 0);
    chart.show(
      inside.map((index) => times[index]),
      found.map(([name, values]) => ({ name: name || t("metrics.all"), values: inside.map((index) => values[index]) })),
      /** @type {[number, number]} */ (span),
    );
  }
  whole.hidden = closer === null;
}

async function load() {
  const wanted = history;
  try {
    await wanted.load();
    byId("problem").replaceChildren();
    if (wanted === history) draw();
  } catch (error) {
    byId("problem").replaceChildren(errorBox(/** @type {any} */ (error), load));
  }
}

const spans = select(
  "span",
  SPANS_S.map((one) => [String(one), t(`metrics.span.${one}`)]),
  "300",
  { "aria-label": t("metrics.range") },
);
const deployments = select("deployment", [["", t("metrics.all_deployments")]], "", {
  "aria-label": t("metrics.deployment"),
});
const whole = h("button", { type: "button", hidden: true, onclick: () => look(null) }, t("metrics.whole"));
const save = h("button", { type: "button", onclick: saveAll }, icon("download"), t("metrics.save"));
byId("toolbar").append(
  spans,
  deployments,
  whole,
  h("span", { class: "quiet" }, t("metrics.hint")),
  h("span", { class: "spacer" }),
  save,
);

/** Every series of every chart at all times that are known. */
function saveAll() {
  const all = CHARTS.flatMap((kind) =>
    [...kind.read(history, picks, deployment)].map(([name, values]) => ({
      name: `${kind.name} ${name}`.trim(),
      values,
    })),
  );
  downloadCsv("metrics.csv", [
    ["time", ...all.map((one) => one.name)],
    ...history.times.map((at, index) => [new Date(at * 1000).toISOString(), ...all.map((one) => one.values[index])]),
  ]);
}

/** Kept in the address, so that a link shows what its sender saw. @param {[number, number] | null} span */
function look(span) {
  closer = span;
  setFilter("from", span ? String(Math.round(span[0])) : "");
  setFilter("to", span ? String(Math.round(span[1])) : "");
  draw();
}

/** @returns {[number, number] | null} */
function closerOfAddress() {
  const [from, to] = [Number(filterOf("from")), Number(filterOf("to"))];
  return from > 0 && to > from ? [from, to] : null;
}

const shared = closerOfAddress(); // before the first choice of a span forgets it
group.onBrush = (from, to) => look([from, to]);
bindFilter(spans, (span) => {
  if (!span) spans.value = String(SPANS_S[0]);
  history = new FigureHistory(NAMES, Number(spans.value));
  look(null);
  load();
});
if (shared) look(shared);
bindFilter(deployments, (name) => {
  deployment = name;
  draw();
});
live.objects("deployments", (all) =>
  setChoices(deployments, [
    ["", t("metrics.all_deployments")],
    ...[...all.keys()].map((name) => /** @type {[string, string]} */ ([name, name])),
  ]),
);
live.figures((at, figures) => {
  history.add(at, figures);
  if (history.intervalS === 1 && !closer) draw();
});
document.addEventListener("visibilitychange", () => document.hidden || closer || load()); // nothing came meanwhile
setInterval(() => document.hidden || closer || history.intervalS === 1 || load(), COARSE_MS);
byId("scrape").append(
  codeBlock(
    `scrape_configs:\n  - job_name: trivet\n    scheme: ${location.protocol.slice(0, -1)}\n    static_configs:\n      - targets: ["${location.host}"]\n    authorization:\n      credentials_file: /etc/prometheus/trivet.key  # a key with the scope "read"`,
  ),
);
