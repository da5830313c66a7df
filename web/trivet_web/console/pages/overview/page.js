// Overview: whether the site is well, at a glance; on a new site what to do first.

import { byId } from "../../base/dom.js";
import { live } from "../../base/live.js";
import { pageData } from "../../base/page_data.js";
import { Devices } from "./devices.js";
import { FirstRun } from "./first_run.js";
import { Instances } from "./instances.js";
import { KvMap } from "./kv_map.js";
import { Latencies } from "./latencies.js";
import { Occupancy } from "./occupancy.js";
import { Problems } from "./problems.js";
import { Rates } from "../../base/rates.js";
import { Tiles } from "./tiles.js";

const REDRAW_MS = 1000;

const rates = new Rates();
const tiles = new Tiles(byId("tiles"));
const occupancy = new Occupancy(byId("occupancy"));
const latencies = new Latencies(byId("ttft"), byId("tpot"), (found) => tiles.showLatencies(found));
const devices = new Devices(byId("devices"));
const instances = new Instances(byId("instances"), rates);
const kvMap = new KvMap(byId("kv"));
const problems = new Problems(byId("problems"));
const firstRun = new FirstRun(byId("first-run"), byId("first-run-steps"));

live.objects("instances", (all) => {
  const found = [...all.values()];
  rates.add(found, Date.now());
  tiles.showInstances(found, rates);
  instances.show(found);
  problems.show(found);
  kvMap.follow(found);
  devices.showInstances(found);
  firstRun.showInstances(found);
});
live.objects("deployments", (all) => {
  tiles.showDeployments([...all.values()]);
  firstRun.showDeployments([...all.values()]);
});
live.objects("devices", (all) => {
  devices.show([...all.values()]);
  firstRun.showDevices([...all.values()]);
});
live.figures((at, figures) => {
  occupancy.add(at, figures);
  tiles.showFigures(figures);
});
live.onStatus((status) => {
  const asOf = status === "live" || !live.asOf ? null : live.asOf;
  instances.stale(asOf);
  devices.stale(asOf);
});
setInterval(() => document.hidden || instances.refresh(), 5 * REDRAW_MS);
latencies.begin();
occupancy.begin();
firstRun.begin(pageData.user);
