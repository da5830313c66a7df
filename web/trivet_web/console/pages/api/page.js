// The API as this server describes it: every route with what it reads and answers.

import { get } from "../../base/api.js";
import { codeBlock } from "../../base/copy.js";
import { byId, h } from "../../base/dom.js";
import { bindFilter, matches } from "../../base/filters.js";
import { DataPlace } from "../../base/states.js";
import { t } from "../../base/texts.js";
import { curlOf, pythonOf } from "./examples.js";
import { sampleOf, shapeOf } from "./schema.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
/** @type {[string, RegExp][]} the first that matches */
const GROUPS = [
  ["openai", /^\/v1\/(?!messages|model_registrations|cluster|score|rerank)/],
  ["platform", /^\/platform\//],
  ["dialects", /^\/(api|generate|info|v1\/messages|v1\/model_registrations|v1\/cluster|token$)/],
  ["models", /^\/(score|rerank|v2|v1\/score|v1\/rerank|tokenize|detokenize|tokenizer_info)/],
  ["other", /./],
];

const place = new DataPlace(byId("routes"), h("div", { class: "stack" }));

/** @param {any} document */
function show(document) {
  const routes = Object.entries(document.paths).flatMap(([path, methods]) =>
    METHODS.filter((method) => methods[method]).map((method) => ({ path, method, operation: methods[method] })),
  );
  const groups = GROUPS.map(([name]) => ({ name, routes: /** @type {any[]} */ ([]) }));
  for (const route of routes)
    groups.find(({ name }) => name === GROUPS.find(([, pattern]) => pattern.test(route.path))?.[0])?.routes.push(route);
  const rows = /** @type {{node: HTMLElement, text: string}[]} */ ([]);
  const cards = groups
    .filter((group) => group.routes.length)
    .map((group) => {
      const details = group.routes.map((route) => {
        const node = routeNode(route, document);
        rows.push({ node, text: `${route.method} ${route.path} ${route.operation.summary ?? ""}` });
        return node;
      });
      return h(
        "section",
        { class: "card flush" },
        h("div", { class: "card-head" }, h("h2", {}, t(`api.group.${group.name}`))),
        details,
      );
    });
  place.content.replaceChildren(...cards);
  place.show();
  bindFilter(byId("filter"), (words) => {
    for (const { node, text } of rows) node.hidden = !matches(text, words);
    for (const card of cards) card.hidden = ![...card.querySelectorAll("details")].some((one) => !one.hidden);
  });
}

/** Its inside is made when it is opened: there are a hundred. @param {any} route @param {any} document */
function routeNode({ path, method, operation }, document) {
  const node = h(
    "details",
    { class: "route" },
    h(
      "summary",
      {},
      h("span", { class: `method ${method}` }, method.toUpperCase()),
      h("code", {}, path),
      h("span", { class: "quiet grow" }, operation.summary ?? ""),
    ),
  );
  node.addEventListener("toggle", () => {
    if (node.open && node.children.length === 1) node.append(inside(path, method, operation, document));
  });
  return node;
}

/** @param {string} path @param {string} method @param {any} operation @param {any} document */
function inside(path, method, operation, document) {
  const body = operation.requestBody?.content?.["application/json"]?.schema;
  const answer = Object.entries(operation.responses ?? {}).find(([status]) => status.startsWith("2"))?.[1]?.content?.[
    "application/json"
  ]?.schema;
  const query = (operation.parameters ?? []).filter((/** @type {any} */ one) => one.in === "query");
  const sample = body && sampleOf(body, document);
  return h(
    "div",
    { class: "route-inside stack" },
    operation.description && h("p", {}, operation.description),
    query.length > 0 && [
      h("h3", {}, t("api.query")),
      h(
        "ul",
        {},
        query.map((/** @type {any} */ one) =>
          h("li", {}, h("code", {}, one.name), " ", h("span", { class: "quiet" }, shapeOf(one.schema, document))),
        ),
      ),
    ],
    body && [h("h3", {}, t("api.body")), codeBlock(shapeOf(body, document))],
    answer && [h("h3", {}, t("api.answer")), codeBlock(shapeOf(answer, document))],
    h("h3", {}, "curl"),
    codeBlock(curlOf(location.origin, path, method, sample)),
    h("h3", {}, "Python"),
    codeBlock(pythonOf(location.origin, path, method, sample)),
  );
}

byId("first").append(
  codeBlock(`from openai import OpenAI\n\nclient = OpenAI(base_url="${location.origin}/v1", api_key="sk-…")`),
);
try {
  show(await get("/openapi.json"));
} catch (error) {
  place.fail(/** @type {any} */ (error), () => location.reload());
}
