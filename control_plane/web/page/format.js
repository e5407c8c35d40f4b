// Numbers with units, as a person compares them.

/** 1,234 or 12.3: few digits. */
export function number(value) {
  if (value === null || value === undefined) return "-";
  const digits = Math.abs(value) < 10 && !Number.isInteger(value) ? 1 : 0;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** "48,000/s", "250 k/s" or "1.2 M/s": short enough for an axis. */
export function rate(perSecond) {
  const size = Math.abs(perSecond ?? 0);
  if (size < 100_000) return `${number(perSecond)}/s`;
  return size < 1_000_000 ? `${number(Math.round(perSecond / 1000))} k/s` : `${number(perSecond / 1_000_000)} M/s`;
}

/** "97 %" of a share from 0 to 1. */
export const percent = (share) => `${Math.round(share * 100)} %`;

/** "14 ms", "1.2 s", "2.5 min", "40 min", "3 h". */
export function time(ms) {
  if (ms === null || ms === undefined) return "-";
  if (Math.abs(ms) < 1000) return `${number(ms)} ms`;
  if (Math.abs(ms) < 120_000) return `${(ms / 1000).toFixed(1)} s`;
  if (Math.abs(ms) < 7_200_000) return `${number(ms / 60_000)} min`;
  return `${number(ms / 3_600_000)} h`;
}

/** "64 MB". */
export function bytes(count) {
  if (!count) return "0 B";
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(Math.floor(Math.log10(count) / 3), units.length - 1);
  return `${number(count / 1000 ** power)} ${units[power]}`;
}

/** "14:03:05" of a wall clock's ms. */
export const clock = (ms) => (ms ? new Date(ms).toLocaleTimeString("en-GB") : "-");
