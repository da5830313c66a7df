// Numbers, sizes and times as people read them.

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const precise = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export const count = (value) => plain.format(value);

/** One decimal below 100. */
export const rate = (value) => (value < 100 ? precise : plain).format(value);

export const percent = (share) => `${Math.round(share * 100)} %`;

/** @param {number} value bytes */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (value >= 1024 && power < units.length - 1) {
    value /= 1024;
    power += 1;
  }
  return `${(power === 0 || value >= 100 ? plain : precise).format(value)} ${units[power]}`;
}

export const time = (iso) => clock.format(new Date(iso));

/** @param {string | null} iso the beginning */
export function since(iso) {
  if (!iso) return "–";
  const seconds = Math.max(0, Math.round((Date.now() - new Date(iso).getTime()) / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
