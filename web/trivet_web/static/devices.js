// Devices with what is reserved on them, as the supervisor's probe last saw them.

import { byId, h } from "./dom.js";
import { bytes } from "./format.js";
import { memoryBar } from "./memory.js";

export class Devices {
  constructor() {
    this.body = byId("devices");
    this.shown = "";
  }

  /** @param {import("./poller.js").State} state */
  show({ devices, instances }) {
    const parts = new Map(devices.map((device) => [device.uid, []]));
    for (const { device_uids: uids, plan, state } of instances) {
      if (plan && !["failed", "stopped", "lost", "pending"].includes(state)) {
        for (const uid of uids) parts.get(uid)?.push(...plan.parts);
      }
    }
    const content = JSON.stringify([devices.map(({ as_of, free_bytes, ...rest }) => rest), [...parts]]);
    if (content === this.shown) return;
    this.shown = content;
    const usable = devices.filter((device) => !device.unusable_because);
    const absent = devices.filter((device) => device.unusable_because);
    this.body.replaceChildren(
      ...(devices.length ? [] : [h("p", { class: "empty" }, "No device has been probed yet.")]),
      ...usable.map((device) => card(device, parts.get(device.uid))),
      ...absent.map((device) =>
        h("p", { class: "quiet" }, h("b", {}, device.kind), ` not usable: ${device.unusable_because}`),
      ),
    );
  }
}

/** Load, temperature and power, as far as the backend tells them. */
function usage({ utilisation_percent: load, temperature_c: heat, power_w: power }) {
  const figures = [[load, "%"], [heat, "°C"], [power, "W"]];
  return figures.filter(([value]) => value !== null && value !== undefined).map((each) => each.join(" "));
}

function card(device, parts) {
  const sums = new Map();
  for (const { name, size_bytes: size } of parts) sums.set(name, (sums.get(name) ?? 0) + size);
  const merged = [...sums].map(([name, size]) => ({ name, size_bytes: size }));
  return h(
    "div",
    { class: "device" },
    h("p", {}, h("b", {}, `${device.kind}:${device.index}`), ` ${device.name} `, h("span", { class: "quiet" }, [bytes(device.total_bytes), ...usage(device)].join(" · "))),
    memoryBar(merged, device.total_bytes),
  );
}
