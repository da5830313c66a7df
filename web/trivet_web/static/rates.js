// Tokens per second, from the totals that engines report. A total that shrinks belongs to a new process.

const SPAN_MS = 3000;

export class Rates {
  constructor() {
    this.samples = new Map(); // instance id → [{at, total}]
  }

  /** @param {any[]} instances @param {number} at milliseconds */
  add(instances, at) {
    const living = new Set();
    for (const { id, load } of instances) {
      if (!load) continue;
      living.add(id);
      const samples = this.samples.get(id) ?? [];
      if (samples.length && samples.at(-1).total > load.generation_tokens) samples.length = 0;
      samples.push({ at, total: load.generation_tokens });
      while (samples.length > 2 && at - samples[0].at > SPAN_MS) samples.shift();
      this.samples.set(id, samples);
    }
    for (const id of this.samples.keys()) if (!living.has(id)) this.samples.delete(id);
  }

  /** @returns {number} of one instance, over the last few seconds */
  of(id) {
    const samples = this.samples.get(id);
    if (!samples || samples.length < 2) return 0;
    const first = samples[0];
    const last = samples.at(-1);
    return ((last.total - first.total) * 1000) / Math.max(1, last.at - first.at);
  }

  total() {
    return [...this.samples.keys()].reduce((sum, id) => sum + this.of(id), 0);
  }
}
