// Devices: whose memory is what, how busy and how warm they are, and why one cannot be used.

import { memoryBar } from "../../base/charts/memory_bar.js";
import { h, KeyedList, setText } from "../../base/dom.js";
import { bytes } from "../../base/format.js";
import { setSaid } from "../../base/said.js";
import { DataPlace } from "../../base/states.js";
import { t } from "../../base/texts.js";

const KINDS = ["weights", "kv", "activations"]; // the rest of the plans is one part

export class Devices {
  /** @param {HTMLElement} parent */
  constructor(parent) {
    const list = h("div", { class: "stack" });
    this.place = new DataPlace(parent, list);
    /** @type {Record<string, any>[]} */
    this.devices = [];
    /** @type {Record<string, any>[]} */
    this.instances = [];
    this.list = new KeyedList(list, () => new DeviceView(this));
  }

  /** @param {Record<string, any>[]} devices */
  show(devices) {
    this.devices = devices.filter((one) => one.kind !== "null");
    this.draw();
  }

  /** @param {Record<string, any>[]} instances */
  showInstances(instances) {
    this.instances = instances;
    if (this.devices.length) this.draw();
  }

  /** @param {number | null} asOf */
  stale(asOf) {
    this.place.stale(asOf);
  }

  draw() {
    this.list.sync(this.devices, (one) => `${one.kind}:${one.uid}`);
    if (this.devices.length) this.place.show();
    else this.place.empty(t("overview.no_devices"));
  }
}

class DeviceView {
  /** @param {Devices} owner */
  constructor(owner) {
    this.owner = owner;
    this.name = h("b");
    this.numbers = h("span", { class: "quiet" });
    this.memory = h("div");
    this.problem = h("p", { class: "error", hidden: true });
    this.node = h(
      "div",
      { class: "device" },
      h("p", { class: "device-head" }, this.name, this.numbers),
      this.memory,
      this.problem,
    );
    this.shown = "";
  }

  /** @param {Record<string, any>} device */
  update(device) {
    setText(this.name, `${device.kind}:${device.index}  ${device.name}`);
    const numbers = [
      device.utilisation_percent !== null && `${device.utilisation_percent} %`,
      device.temperature_c !== null && `${device.temperature_c} °C`,
      device.power_w !== null && `${Math.round(device.power_w)} W`,
      bytes(device.total_bytes),
    ];
    setText(this.numbers, numbers.filter(Boolean).join(" · "));
    this.problem.hidden = !device.unusable_because;
    setSaid(this.problem, device.unusable_because ?? "");
    const parts = partsOf(device, this.owner.instances);
    const key = JSON.stringify(parts.map((part) => [part.name, Math.round(part.size_bytes / 2 ** 22)]));
    if (key === this.shown) return;
    this.shown = key;
    this.memory.replaceChildren(memoryBar(parts, device.total_bytes));
  }
}

/** What the plans of live instances hold, and what else is in use. @param {Record<string, any>} device @param {Record<string, any>[]} instances */
export function partsOf(device, instances) {
  /** @type {Record<string, number>} */
  const sums = {};
  for (const { backend, device_uids: uids, plan } of instances) {
    if (backend !== device.kind || !plan || !uids.includes(device.uid)) continue;
    for (const { name, size_bytes: size } of plan.parts ?? []) {
      const kind = KINDS.includes(name) ? name : "workspace";
      sums[kind] = (sums[kind] ?? 0) + size / uids.length;
    }
  }
  const parts = [...KINDS, "workspace"].map((name) => ({ name, size_bytes: sums[name] ?? 0 }));
  const planned = parts.reduce((sum, part) => sum + part.size_bytes, 0);
  const used = device.used_bytes ?? device.total_bytes - device.free_bytes;
  return [...parts, { name: "others", size_bytes: Math.max(0, Math.min(used, device.total_bytes) - planned) }];
}
