// Requests: each as a bar of where its time went, so that a slow first token says why it was slow.

import { change, get } from "../../base/api.js";
import { badge } from "../../base/badge.js";
import { byId, h, icon } from "../../base/dom.js";
import { confirm, openDialog } from "../../base/dialog.js";
import { bindFilter } from "../../base/filters.js";
import { count, duration, fullTime, timeNode, timeOfDay } from "../../base/format.js";
import { select } from "../../base/form.js";
import { may } from "../../base/page_data.js";
import { said } from "../../base/said.js";
import { doAll, Selection } from "../../base/selection.js";
import { LiveTable } from "../../base/table.js";
import { toast } from "../../base/toast.js";
import { t, tn } from "../../base/texts.js";

const EVERY_MS = 2000;
const MOST = 500;
const PHASES = /** @type {[string, string][]} */ ([
  ["prepare_s", "--series-7"],
  ["queue_s", "--series-1"],
  ["prefill_s", "--series-3"],
  ["decode_s", "--series-0"],
]);
const TONES = /** @type {Record<string, string>} */ ({
  running: "warn",
  done: "ok",
  failed: "bad",
  cancelled: "quiet",
});
let longest = 1;

/** @type {Selection<Record<string, any>>} */
const selection = new Selection({
  keyOf: (one) => one.id,
  nameOf: (one) => `${one.model} ${timeOfDay(one.at)}`,
  acts: [{ word: t("requests.stop"), takes: (one) => one.status === "running", run: stopAll }],
});
/** @type {LiveTable<Record<string, any>>} */
const table = new LiveTable(byId("requests"), {
  selection: may("operate") ? selection : null,
  label: t("shell.page.requests"),
  keyOf: (one) => one.id,
  empty: t("requests.empty"),
  columns: [
    {
      key: "at",
      title: t("requests.at"),
      value: (one) => one.at,
      cell: (one) => h("time", { datetime: one.at, title: fullTime(one.at), class: "nowrap" }, timeOfDay(one.at)),
    },
    {
      key: "model",
      title: t("requests.model"),
      value: (one) => one.model,
      cell: (one, now) => h("button", { type: "button", class: "link", onclick: () => open(now()) }, one.model),
    },
    { key: "who", title: t("requests.who"), value: (one) => said(one.who) },
    {
      key: "status",
      title: t("requests.status"),
      value: (one) => `${one.status} ${one.reason}`,
      cell: (one) =>
        h(
          "span",
          { class: "row nowrap" },
          badge(TONES[one.status] ?? "quiet", t(`requests.status.${one.status}`)),
          one.reason && h("span", { class: "quiet" }, one.reason),
        ),
    },
    {
      key: "prompt",
      title: t("requests.prompt"),
      isNumber: true,
      value: (one) => one.prompt_tokens,
      cell: (one) => count(one.prompt_tokens),
    },
    {
      key: "cached",
      title: t("requests.cached"),
      isNumber: true,
      value: (one) => one.cached_tokens,
      cell: (one) => count(one.cached_tokens),
    },
    {
      key: "output",
      title: t("requests.output"),
      isNumber: true,
      value: (one) => one.completion_tokens,
      cell: (one) => count(one.completion_tokens),
    },
    { key: "ttft", title: t("requests.ttft"), isNumber: true, value: ttftOf, cell: (one) => duration(ttftOf(one)) },
    {
      key: "total",
      title: t("requests.total"),
      isNumber: true,
      value: (one) => one.total_s,
      cell: (one) => duration(one.total_s),
    },
    {
      key: "course",
      title: t("requests.course"),
      isPlain: true,
      class: "course",
      value: (one) => `${one.total_s} ${longest}`,
      cell: bar,
    },
    ...(may("operate")
      ? [
          {
            key: "actions",
            title: t("requests.actions"),
            isPlain: true,
            class: "actions",
            value: (/** @type {any} */ one) => one.status,
            cell: stopButton,
          },
        ]
      : []),
  ],
});

/** @param {Record<string, any>} one */
function ttftOf(one) {
  return one.prefill_s === null ? null : (one.prepare_s ?? 0) + (one.queue_s ?? 0) + one.prefill_s;
}

/** @param {Record<string, any>} one */
function bar(one) {
  const parts = PHASES.map(([name, colour]) => {
    const part = h("i");
    part.style.width = `${(100 * (one[name] ?? 0)) / longest}%`;
    part.style.background = `var(${colour})`;
    return part;
  });
  return h(
    "span",
    {
      class: "course-bar",
      role: "img",
      "aria-label": PHASES.map(([name]) => `${t(`requests.phase.${name}`)} ${duration(one[name])}`).join(", "),
    },
    parts,
  );
}

/** @param {Record<string, any>} one */
function stopButton(one) {
  if (one.status !== "running") return "";
  return h("button", { type: "button", class: "small", onclick: () => stop(one) }, t("requests.stop"));
}

/** @param {Record<string, any>} one */
async function stop(one) {
  try {
    await change("DELETE", `/platform/v1/requests/${encodeURIComponent(one.id)}`);
    await read();
  } catch (error) {
    toast(/** @type {Error} */ (error).message, { tone: "bad" });
  }
}

/** @param {Record<string, any>[]} all */
async function stopAll(all) {
  const isDone = await confirm({
    title: tn("requests.stop_all_title", all.length),
    text: t("requests.stop_all_text"),
    yes: t("requests.stop"),
    onYes: () =>
      doAll(
        all,
        (one) => change("DELETE", `/platform/v1/requests/${encodeURIComponent(one.id)}`),
        (one) => one.id,
      ),
  });
  await read();
  return isDone;
}

/** @param {Record<string, any>} one */
function open(one) {
  const speed = one.decode_s && one.completion_tokens > 1 ? (one.completion_tokens - 1) / one.decode_s : null;
  /** @type {[string, Node | string][]} */
  const rows = [
    [t("requests.id"), h("code", {}, one.id)],
    [t("requests.at"), timeNode(one.at)],
    [t("requests.route"), h("code", {}, one.route)],
    [
      t("requests.instance"),
      one.instance ? h("a", { href: `/console/instances/${encodeURIComponent(one.instance)}` }, one.instance) : "–",
    ],
    ...(one.adapter ? [/** @type {[string, string]} */ ([t("requests.adapter"), one.adapter])] : []),
    [t("requests.streamed"), t(one.is_streamed ? "requests.yes" : "requests.no")],
    ...PHASES.map(([name]) => /** @type {[string, string]} */ ([t(`requests.phase.${name}`), duration(one[name])])),
    [t("requests.speed"), speed === null ? "–" : t("requests.speed_value", { value: speed.toFixed(1) })],
  ];
  openDialog({
    title: one.model,
    body: [
      bar(one),
      h(
        "dl",
        { class: "facts" },
        rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
      ),
    ],
  });
}

async function read() {
  try {
    const { data } = await get(`/platform/v1/requests?limit=${MOST}`);
    longest = Math.max(0.001, ...data.slice(0, 100).map((/** @type {any} */ one) => one.total_s));
    table.show(data);
  } catch (error) {
    table.fail(/** @type {any} */ (error), read);
  }
}

const statuses = select(
  "status",
  [
    ["", t("requests.all")],
    ...Object.keys(TONES).map((one) => /** @type {[string, string]} */ ([one, t(`requests.status.${one}`)])),
  ],
  "",
  { "aria-label": t("requests.status") },
);
byId("toolbar").append(
  table.filterField(),
  statuses,
  h("span", { class: "spacer" }),
  h(
    "button",
    { type: "button", class: "ghost", onclick: () => table.download("requests.csv") },
    icon("download"),
    "CSV",
  ),
);
bindFilter(statuses, (status) => table.pick((one) => !status || one.status === status));
byId("legend").append(
  h(
    "ul",
    { class: "legend" },
    PHASES.map(([name, colour]) => {
      const dot = h("i", { class: "dot" });
      dot.style.background = `var(${colour})`;
      return h("li", {}, dot, t(`requests.phase.${name}`));
    }),
  ),
);
read();
setInterval(() => document.hidden || read(), EVERY_MS);
