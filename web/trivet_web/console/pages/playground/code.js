// The request as a program: curl, Python, JavaScript.

import { codeBlock } from "../../base/copy.js";
import { openDialog } from "../../base/dialog.js";
import { h } from "../../base/dom.js";
import { t } from "../../base/texts.js";

/** @param {Record<string, any>} request of /v1/chat/completions */
export function showCode(request) {
  const { stream_options: _, ...body } = request;
  const samples = [
    ["curl", curlOf(body)],
    ["Python", pythonOf(body)],
    ["JavaScript", javascriptOf(body)],
  ];
  openDialog({
    title: t("playground.view_code"),
    isWide: true,
    body: [
      h(
        "p",
        { class: "quiet" },
        t("playground.code_note"),
        " ",
        h("a", { href: "/console/keys" }, t("playground.code_key")),
      ),
      ...samples.map(([name, code]) => h("section", { class: "stack" }, h("h3", {}, name), codeBlock(code))),
    ],
  });
}

/** @param {unknown} value */
const pretty = (value) => JSON.stringify(value, null, 2);

/** In single quotes of a shell. @param {string} text */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** @param {Record<string, any>} body */
export const curlOf = (body) => `curl ${location.origin}/v1/chat/completions \\
  -H "Authorization: Bearer $TRIVET_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d ${quoted(pretty(body))}`;

/** JSON's words in Python's. @param {unknown} value @param {number} depth @returns {string} */
export function pythonValue(value, depth = 0) {
  const pad = "    ".repeat(depth + 1);
  const end = "    ".repeat(depth);
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value))
    return value.length ? `[\n${value.map((one) => `${pad}${pythonValue(one, depth + 1)},\n`).join("")}${end}]` : "[]";
  if (typeof value === "object")
    return `{\n${Object.entries(value)
      .map(([name, one]) => `${pad}${JSON.stringify(name)}: ${pythonValue(one, depth + 1)},\n`)
      .join("")}${end}}`;
  return JSON.stringify(value);
}

const OPENAI = [
  "model",
  "messages",
  "stream",
  "temperature",
  "max_tokens",
  "top_p",
  "seed",
  "presence_penalty",
  "frequency_penalty",
  "stop",
  "logprobs",
  "top_logprobs",
  "response_format",
  "tools",
];

/** What OpenAI's library does not know goes into its extra_body. @param {Record<string, any>} body */
export function pythonOf(body) {
  const own = Object.entries(body).filter(([name]) => OPENAI.includes(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !OPENAI.includes(name)));
  const more = Object.keys(extra).length ? `    extra_body=${pythonValue(extra, 1)},\n` : "";
  return `import os
from openai import OpenAI

client = OpenAI(base_url="${location.origin}/v1", api_key=os.environ["TRIVET_API_KEY"])
chunks = client.chat.completions.create(
${own.map(([name, value]) => `    ${name}=${pythonValue(value, 1)},\n`).join("")}${more})
for chunk in chunks:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}

/** @param {Record<string, any>} body */
export const javascriptOf = (body) => `const response = await fetch("${location.origin}/v1/chat/completions", {
  method: "POST",
  headers: { "Content-Type": "application/json", Authorization: \`Bearer \${process.env.TRIVET_API_KEY}\` },
  body: JSON.stringify(${pretty(body).replaceAll("\n", "\n  ")}),
});
for await (const text of response.body.pipeThrough(new TextDecoderStream())) process.stdout.write(text);
`;
