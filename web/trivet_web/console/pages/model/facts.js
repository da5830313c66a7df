// What the registry knows of a version.

import { copyButton, codeBlock } from "../../base/copy.js";
import { h } from "../../base/dom.js";
import { bytes, count, fullTime, NONE, timeNode } from "../../base/format.js";
import { plainTable } from "../../base/plain_table.js";
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
  /** @type {[string, string?][]} */
  const heads = [
    [t("model.versions.version")],
    [t("model.versions.aliases")],
    [t("model.versions.format")],
    [t("model.versions.size"), "number"],
    [t("model.versions.source"), "source"],
    [t("model.versions.added")],
  ];
  const versions = [...model.versions].reverse();
  const button = (/** @type {any} */ one) =>
    h(
      "button",
      {
        type: "button",
        class: "small",
        "aria-label": t("model.show_version", { version: one.version }),
        onclick: () => onChoose(one.version),
      },
      one.version,
    );
  const tags = (/** @type {string[]} */ aliases) =>
    h(
      "span",
      { class: "row" },
      aliases.map((alias) => h("span", { class: "tag" }, alias)),
    );
  const rows = versions.map((one) => [
    button(one),
    tags(one.aliases),
    [one.format, one.quantization].filter(Boolean).join(" "),
    bytes(one.size_bytes),
    one.source,
    timeNode(one.created_at),
  ]);
  const isChosen = (/** @type {number} */ index) => (versions[index].version === chosen ? "true" : null);
  return h(
    "section",
    { class: "card flush" },
    h("div", { class: "card-head" }, h("h2", {}, t("model.versions"))),
    plainTable(t("model.versions"), heads, rows, (index) => ({ "aria-current": isChosen(index) })),
  );
}

/** @param {any} details */
export function showFiles(details) {
  /** @type {[string, string?][]} */
  const heads = [[t("model.column.file")], [t("model.column.size"), "number"], [t("model.column.sha256")]];
  const rows = details.files.map((/** @type {any} */ file) => [
    h("code", {}, file.name),
    bytes(file.size_bytes),
    file.sha256 ? h("code", { class: "digest" }, file.sha256) : h("span", { class: "quiet" }, t("model.no_digest")),
  ]);
  return h("section", { class: "card flush" }, plainTable(t("model.tab.files"), heads, rows));
}

/** @param {any} details */
export const showSpec = (details) =>
  h(
    "section",
    { class: "card" },
    h("p", { class: "quiet" }, t("model.spec_note")),
    codeBlock(JSON.stringify(details.spec, null, 2)),
  );
