// The table of deployments and their instances.

import { request, text } from "./api.js";
import { byId, h, KeyedList, setClass, setText } from "./dom.js";
import { capital, percent, rate, since, time } from "./format.js";

const ROOT = "/platform/v1";
const KINDS = { ready: "ok", failed: "bad", lost: "bad", stopped: "", draining: "warn", stopping: "warn" };

export class Instances {
  /** @param {{onLaunch: () => void, onChanged: () => void}} actions */
  constructor({ onLaunch, onChanged }) {
    this.onChanged = onChanged;
    this.body = byId("instances-body");
    this.age = byId("instances-age");
    this.skeleton = h("div", { class: "skeleton", "aria-hidden": "true" }, h("i"), h("i"), h("i"));
    this.empty = h(
      "div",
      { class: "empty" },
      h("p", {}, "Nothing is deployed yet."),
      h("button", { type: "button", class: "primary", onclick: onLaunch }, "Launch model"),
    );
    this.table = h("table", { class: "instances" }, heading());
    this.list = new KeyedList(this.table, (deployment) => new Group(deployment, this));
    // The heading is no deployment: it stays the first child.
    this.list.entries.set("", { node: this.table.tHead, update: () => {} });
    this.states = new Map();
    setTimeout(() => this.body.childElementCount || this.body.append(this.skeleton), 200);
  }

  /** @param {import("./poller.js").State} state @param {import("./rates.js").Rates} rates */
  show({ deployments, status, at }, rates) {
    const shown = deployments.filter((one) => one.desired === "running" || one.instances.length);
    this.rates = rates;
    const content = shown.length ? this.table : this.empty;
    if (this.body.firstElementChild !== content) this.body.replaceChildren(content);
    this.list.sync([null, ...shown], (one) => (one ? one.name : ""));
    this.table.classList.toggle("stale", !status.supervisor.up);
    setText(this.age, status.supervisor.up ? "" : `as of ${time(oldest(shown) ?? at)}`);
    this.announce(shown);
  }

  /** The server does not answer: keep what was known, and say from when it is. */
  showStale(at) {
    this.table.classList.add("stale");
    if (at) setText(this.age, `as of ${time(at)}`);
    else this.body.replaceChildren(h("p", { class: "empty" }, "The server does not answer. Trying again."));
  }

  announce(deployments) {
    for (const { name, instances } of deployments) {
      for (const { id, state } of instances) {
        const before = this.states.get(id);
        this.states.set(id, state);
        if (before && before !== state) setText(byId("announcer"), `${name} is ${state}`);
      }
    }
  }

  async stop(name) {
    const sure = await confirm(
      `Stop ${name}?`,
      "It takes no new requests, finishes those that run, and gives its memory back.",
    );
    if (!sure) return;
    await this.act(() => request("DELETE", `${ROOT}/deployments/${encodeURIComponent(name)}`));
  }

  async scale(name, replicas) {
    await this.act(() => request("PATCH", `${ROOT}/deployments/${encodeURIComponent(name)}`, { replicas }));
  }

  async act(action) {
    const place = byId("instances-error"); // not the banner, which the next poll sets anew
    place.hidden = true;
    try {
      await action();
      this.onChanged();
    } catch (error) {
      setText(place, error.message);
      place.hidden = false;
    }
  }
}

const heading = () =>
  h(
    "thead",
    {},
    h(
      "tr",
      {},
      ...["Instance", "State", "Device"].map((title) => h("th", { scope: "col" }, title)),
      ...["Running", "Waiting", "tok/s", "KV"].map((title) => h("th", { scope: "col", class: "number" }, title)),
      h("th", { scope: "col" }, "Up"),
      h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Actions")),
    ),
  );

const oldest = (deployments) =>
  deployments.flatMap((one) => one.instances.map((instance) => instance.as_of)).sort()[0];

/** A deployment: its own row, then one for each instance. */
class Group {
  constructor(deployment, owner) {
    const { name } = deployment;
    this.owner = owner;
    this.detail = h("span", { class: "quiet" });
    this.replicas = h("span", { class: "replicas" });
    this.fewer = button("−", `One replica of ${name} less`, () => owner.scale(name, this.count - 1), "small square");
    this.more = button("+", `One replica of ${name} more`, () => owner.scale(name, this.count + 1), "small square");
    this.stop = button("Stop", `Stop ${name}`, () => owner.stop(name), "small");
    this.node = h(
      "tbody",
      {},
      h(
        "tr",
        { class: "deployment" },
        h("th", { scope: "rowgroup", colspan: 7 }, name, " ", this.detail),
        h("td", { colspan: 2, class: "actions" }, this.fewer, this.replicas, this.more, this.stop),
      ),
    );
    this.rows = new KeyedList(this.node, (instance) => new Row(instance, owner));
    this.rows.entries.set("", { node: this.node.firstElementChild, update: () => {} });
  }

  update(deployment) {
    this.count = deployment.replicas;
    const stopped = deployment.desired !== "running";
    const backends = new Set(deployment.instances.map((instance) => instance.backend).filter(Boolean));
    const backend = backends.size ? [...backends].join(", ") : deployment.backend;
    setText(this.detail, `${deployment.model}:${deployment.version} on ${backend}`);
    setText(this.replicas, stopped ? "stopping" : String(deployment.replicas));
    this.fewer.hidden = this.more.hidden = this.stop.hidden = stopped;
    this.fewer.disabled = deployment.replicas <= 1;
    const items = deployment.instances.length ? deployment.instances : stopped ? [] : [{ id: "-", state: "pending" }];
    this.rows.sync([null, ...items], (one) => (one ? one.id : ""));
  }
}

class Row {
  constructor(instance, owner) {
    this.owner = owner;
    this.pill = h("span", { class: "pill" });
    this.reason = h("span", { class: "reason" });
    this.progress = h("progress", { max: 1, "aria-label": "Weights loaded", hidden: true });
    this.cells = ["", "number", "number", "number", "number", ""].map((name) => h("td", { class: name }));
    this.logs = button("Logs", `Logs of instance ${instance.id}`, () => showLogs(this.instance), "small ghost");
    this.node = h(
      "tr",
      {},
      h("td", { class: "mono" }, instance.id),
      h("td", { class: "state" }, this.pill, this.progress, this.reason),
      ...this.cells,
      h("td", { class: "actions" }, this.logs),
    );
  }

  update(instance) {
    this.instance = instance;
    const { state, load, progress } = instance;
    const loads = state === "loading" && typeof progress === "number";
    setText(this.pill, loads ? `Loading ${percent(progress)}` : capital(state));
    setClass(this.pill, `pill ${KINDS[state] ?? "warn"}`);
    this.progress.hidden = !loads;
    if (loads) this.progress.value = progress;
    setText(this.reason, state === "ready" ? "" : (instance.reason ?? ""));
    const values = [
      (instance.device_uids ?? []).join(", ") || "–",
      load ? load.num_running : "–",
      load ? load.num_waiting : "–",
      load ? rate(this.owner.rates.of(instance.id)) : "–",
      load ? percent(load.kv_usage) : "–",
      state === "ready" ? since(instance.ready_at) : "–",
    ];
    values.forEach((value, index) => setText(this.cells[index], String(value)));
    this.logs.hidden = !instance.attempt;
  }
}

function button(label, title, action, kind) {
  return h("button", { type: "button", class: kind, title, "aria-label": title, onclick: action }, label);
}

async function showLogs({ id, deployment, attempt }) {
  const box = byId("logs-text");
  setText(byId("logs-title"), `${deployment} · ${id}, attempt ${attempt}`);
  setText(box, "Loading");
  byId("logs").showModal();
  try {
    setText(box, (await text(`${ROOT}/logs/${id}?tail=400`)) || "The log is empty.");
  } catch (error) {
    setText(box, error.message);
  }
  box.scrollTop = box.scrollHeight;
}

function confirm(title, detail) {
  const dialog = byId("confirm");
  setText(byId("confirm-title"), title);
  setText(byId("confirm-text"), detail);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
