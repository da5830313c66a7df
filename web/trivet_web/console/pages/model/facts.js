// What the registry knows of a version.

import { copyButton, codeBlock } from "../../base/copy.js";
import { h } from "../../base/dom.js";
import { bytes, count, fullTime, NONE, timeNode } from "../../base/format.js";
import { t } from "../../base/texts.js";

/** @param {any} details client.VersionDetails */
export function showFacts(details) {
  /** @type {[string, Node | string][]} */
  const rows = [
    ["architecture", details.architecture],
    ["format", [details.format, details.quantization].filter(Boolean).join(" ")],
    ["size", bytes(details.size_bytes)],
    ["context", t("model.tokens", { count: count(details.context_length) })],
    [
      "abilities",
      h(
        "span",
        { class: "row" },
        details.abilities.map((/** @type {string} */ one) => h("span", { class: "tag" }, one)),
      ),
    ],
    ["licence", details.licence ?? NONE],
    ["path", h("code", {}, details.path)],
    ["stored", t(details.is_stored ? "model.in_store" : "model.in_place")],
    ["source", details.source],
    ["signed_by", details.signed_by ?? NONE],
    [
      "digest",
      details.digest
        ? h(
            "span",
            { class: "row" },
            h("code", {}, details.digest),
            copyButton(() => details.digest),
          )
        : t("model.no_digest"),
    ],
    ["added", fullTime(details.created_at)],
  ];
  return h(
    "section",
    { class: "card" },
    h(
      "dl",
      { class: "facts" },
      rows.flatMap(([name, value]) => [h("dt", {}, t(`model.fact.${name}`)), h("dd", {}, value)]),
    ),
  );
}

/** All versions of a model, the newest first. @param {any} model @param {number} chosen @param {(version: number) => void} onChoose */
export function showVersions(model, chosen, onChoose) {
  const heads = [
    ["version", ""],
    ["aliases", ""],
    ["format", ""],
    ["size", "number"],
    ["source", ""],
    ["added", ""],
  ].map(([name, kind]) => h("th", { scope: "col", class: kind || null }, t(`model.versions.${name}`)));
  const row = (/** @type {any} */ one) =>
    h(
      "tr",
      { "aria-current": one.version === chosen ? "true" : null },
      h(
        "td",
        {},
        h(
          "button",
          {
            type: "button",
            class: "small",
            "aria-label": t("model.show_version", { version: one.version }),
            onclick: () => onChoose(one.version),
          },
          one.version,
        ),
      ),
      h(
        "td",
        {},
        h(
          "span",
          { class: "row" },
          one.aliases.map((/** @type {string} */ alias) => h("span", { class: "tag" }, alias)),
        ),
      ),
      h("td", {}, [one.format, one.quantization].filter(Boolean).join(" ")),
      h("td", { class: "number" }, bytes(one.size_bytes)),
      h("td", { class: "source" }, one.source),
      h("td", {}, timeNode(one.created_at)),
    );
  const table = h(
    "table",
    { "aria-label": t("model.versions") },
    h("thead", {}, h("tr", {}, heads)),
    h("tbody", {}, [...model.versions].reverse().map(row)),
  );
  return h(
    "section",
    { class: "card flush" },
    h("div", { class: "card-head" }, h("h2", {}, t("model.versions"))),
    h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": t("model.versions") }, table),
  );
}

/** @param {any} details */
export function showFiles(details) {
  const row = (/** @type {any} */ file) =>
    h(
      "tr",
      {},
      h("td", {}, h("code", {}, file.name)),
      h("td", { class: "number" }, bytes(file.size_bytes)),
      h(
        "td",
        {},
        file.sha256 ? h("code", { class: "digest" }, file.sha256) : h("span", { class: "quiet" }, t("model.no_digest")),
      ),
    );
  const heads = [
    ["file", ""],
    ["size", "number"],
    ["sha256", ""],
  ].map(([name, kind]) => h("th", { scope: "col", class: kind || null }, t(`model.column.${name}`)));
  return h(
    "section",
    { class: "card flush" },
    h(
      "div",
      { class: "table-scroll", tabindex: "0", role: "region", "aria-label": t("model.tab.files") },
      h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, details.files.map(row))),
    ),
  );
}

/** @param {any} details */
export const showSpec = (details) =>
  h(
    "section",
    { class: "card" },
    h("p", { class: "quiet" }, t("model.spec_note")),
    codeBlock(JSON.stringify(details.spec, null, 2)),
  );
