// Four numbers that tell at a glance whether the site is well.

import { byId, h, setText } from "./dom.js";
import { count, percent, rate } from "./format.js";

export class Tiles {
  constructor() {
    this.values = new Map();
    const tile = (key, title) => {
      const value = h("span", { class: "stat" }, "–");
      const unit = h("span", { class: "unit" });
      this.values.set(key, { value, unit });
      return h("div", { class: "card tile" }, h("h2", {}, title), h("p", {}, value, unit));
    };
    byId("tiles").append(
      tile("rate", "Generated"),
      tile("requests", "Running / waiting"),
      tile("ready", "Ready instances"),
      tile("kv", "KV cache in use"),
    );
  }

  /** @param {import("./poller.js").State} state @param {number} tokensPerSecond */
  show({ instances, deployments }, tokensPerSecond) {
    const loads = instances.map((instance) => instance.load).filter(Boolean);
    const sum = (name) => loads.reduce((total, load) => total + load[name], 0);
    const wanted = deployments
      .filter((deployment) => deployment.desired === "running")
      .reduce((total, deployment) => total + deployment.replicas, 0);
    const ready = instances.filter((instance) => instance.state === "ready").length;
    this.set("rate", rate(tokensPerSecond), "tok/s");
    this.set("requests", count(sum("num_running")), `/ ${count(sum("num_waiting"))}`);
    this.set("ready", count(ready), `of ${count(wanted)}`);
    this.set("kv", loads.length ? percent(Math.max(...loads.map((load) => load.kv_usage))) : "–", "at most");
  }

  set(key, value, unit) {
    setText(this.values.get(key).value, value);
    setText(this.values.get(key).unit, unit);
  }
}
