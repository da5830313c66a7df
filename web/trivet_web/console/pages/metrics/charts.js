// Which charts there are, and what each is made of.

import { bytes, count, duration, percent, rate } from "../../base/format.js";

/**
 * @typedef {object} ChartKind
 * @property {string} name its title is metrics.chart.NAME
 * @property {(history: import("../../base/figure_history.js").FigureHistory, picks: any, deployment: string) => Map<string, (number | null)[]>} read
 * @property {(value: number) => string} format
 * @property {boolean} [isStacked]
 * @property {number} [least] the lowest top of the axis
 */

const MODEL = "model_name";
const QUANTILES = ["p50", "p95", "p99"];

/** @param {string} name @param {string} [by] @returns {ChartKind["read"]} */
const gauge =
  (name, by = MODEL) =>
  (history, picks) =>
    history.sums(name, { by, picks });
/** @param {string} name @param {string} [by] @returns {ChartKind["read"]} */
const counter =
  (name, by = MODEL) =>
  (history, picks) =>
    history.sums(name, { by, isRate: true, picks });
/** @param {string} name @returns {ChartKind["read"]} */
const mean = (name) => (history, picks) => history.quotients(`${name}_sum`, `${name}_count`, { by: MODEL, picks });

/** The server's, over a minute: of one deployment, or of all together. @param {string} name @returns {ChartKind["read"]} */
const quantiles = (name) => (history, _, deployment) => {
  const ofIt = (/** @type {Record<string, string>} */ labels) => (labels[MODEL] ?? "") === deployment;
  return new Map(
    QUANTILES.flatMap((one) =>
      [...history.sums(`${name}_${one}`, { picks: ofIt }).values()].map(
        (values) => /** @type {[string, (number | null)[]]} */ ([one, values]),
      ),
    ),
  );
};

/** @type {ChartKind[]} */
export const CHARTS = [
  { name: "generated", read: counter("generation_tokens_total"), format: rate, isStacked: true },
  { name: "prompt", read: counter("prompt_tokens_total"), format: rate, isStacked: true },
  { name: "running", read: gauge("num_requests_running"), format: count, isStacked: true, least: 4 },
  { name: "waiting", read: gauge("num_requests_waiting"), format: count, isStacked: true, least: 4 },
  { name: "ttft", read: quantiles("time_to_first_token_seconds"), format: duration, least: 0.01 },
  { name: "tpot", read: quantiles("inter_token_latency_seconds"), format: duration, least: 0.01 },
  { name: "e2e", read: mean("e2e_request_latency_seconds"), format: duration, least: 0.1 },
  { name: "queue", read: mean("request_queue_time_seconds"), format: duration, least: 0.01 },
  { name: "kv", read: gauge("kv_cache_usage_perc", "instance"), format: percent, least: 0.1 },
  {
    name: "hits",
    read: (history, picks) =>
      history.quotients("prefix_cache_hits_total", "prefix_cache_queries_total", { by: MODEL, picks }),
    format: percent,
    least: 0.1,
  },
  { name: "finished", read: counter("request_success_total", "finished_reason"), format: rate, isStacked: true },
  { name: "failed", read: counter("request_failures_total", "code"), format: rate, isStacked: true },
  { name: "preempted", read: counter("num_preemptions_total"), format: rate },
  { name: "utilisation", read: gauge("device_utilisation_ratio", "device"), format: percent, least: 0.1 },
  { name: "memory", read: gauge("device_memory_used_bytes", "device"), format: bytes },
  { name: "temperature", read: gauge("device_temperature_celsius", "device"), format: (value) => `${count(value)} °C` },
  { name: "power", read: gauge("device_power_watts", "device"), format: (value) => `${count(value)} W` },
];

export const NAMES = [
  ...[
    "generation_tokens_total",
    "prompt_tokens_total",
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
  ],
  ...[
    "prefix_cache_hits_total",
    "prefix_cache_queries_total",
    "request_success_total",
    "request_failures_total",
    "num_preemptions_total",
  ],
  ...["device_utilisation_ratio", "device_memory_used_bytes", "device_temperature_celsius", "device_power_watts"],
  ...["time_to_first_token_seconds", "inter_token_latency_seconds"].flatMap((name) =>
    QUANTILES.map((one) => `${name}_${one}`),
  ),
  ...["e2e_request_latency_seconds", "request_queue_time_seconds"].flatMap((name) => [`${name}_sum`, `${name}_count`]),
];
