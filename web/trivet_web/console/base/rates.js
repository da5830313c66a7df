// Tokens per second, from the totals that engines report. A total that shrinks belongs to a new process.

const SPAN_MS = 4000;

export class Rates {
  constructor() {
    /** @type {Map<string, {at: number, total: number}[]>} by instance */
    this.samples = new Map();
  }

  /** @param {Record<string, any>[]} instances @param {number} at milliseconds */
  add(instances, at) {
    const living = new Set();
    for (const { id, load } of instances) {
      if (!load) continue;
      living.add(id);
      const samples = this.samples.get(id) ?? [];
      const last = samples[samples.length - 1];
      if (last && last.total > load.generation_tokens) samples.length = 0;
      if (!last || at > last.at) samples.push({ at, total: load.generation_tokens });
      while (samples.length > 2 && at - samples[1].at >= SPAN_MS) samples.shift();
      this.samples.set(id, samples);
    }
    for (const id of this.samples.keys()) if (!living.has(id)) this.samples.delete(id);
  }

  /** Over the last few seconds; null until it is known. @param {string} id */
  of(id) {
    const samples = this.samples.get(id);
    if (!samples || samples.length < 2) return null;
    const [first, last] = [samples[0], samples[samples.length - 1]];
    return ((last.total - first.total) * 1000) / Math.max(1, last.at - first.at);
  }

  total() {
    const known = [...this.samples.keys()].map((id) => this.of(id)).filter((one) => one !== null);
    return known.reduce((sum, one) => sum + Number(one), 0);
  }
}
