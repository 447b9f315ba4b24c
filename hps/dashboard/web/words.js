// Figures in words, as the page shows them.
//
// Above it: dashboard.js, plots.js, gantt.js. Below it: nothing.

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** A number with three digits that count, and its thousands apart where it is whole. */
function digits(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(3)));
}

function bytes(value, places = 1) {
  let place = 0;
  let left = Math.abs(value);
  while (left >= 1024 && place < SIZES.length - 1) {
    left /= 1024;
    place += 1;
  }
  return `${place === 0 ? Math.round(left) : left.toFixed(places)} ${SIZES[place]}`;
}

/** Seconds: of latencies in small units, of ages in large ones. */
export function time(value) {
  if (value === 0) return "0 s";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${digits(value * 1e3)} ms`;
  if (value < 120) return `${digits(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${(value / 86400).toFixed(1)} days`;
}

/** A value of a unit of panels.py. */
export function shown(value, unit) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (unit === "bytes") return bytes(value);
  if (unit === "bytes/s") return `${bytes(value)}/s`;
  if (unit === "share") return `${(100 * value).toFixed(1)} %`;
  if (unit === "seconds") return time(Math.max(value, 0));
  if (unit === "rate") return `${digits(value)}/s`;
  if (unit === "number") return value.toFixed(4);
  return Math.round(value).toLocaleString("en-US");
}

/** The same for the marks of an axis, in as few letters as can be. */
export function mark(value, unit) {
  if (unit === "number") return String(Number(value.toPrecision(4)));
  if (unit.startsWith("bytes")) {
    return bytes(value, value % 1024 === 0 ? 0 : 1) + unit.slice("bytes".length);
  }
  if (unit === "share") return `${Number((100 * value).toPrecision(3))} %`;
  if (unit === "rate" || unit === "count") {
    return value.toLocaleString("en-US", { notation: "compact", maximumFractionDigits: 2 });
  }
  return shown(value, unit);
}

/** An element with a text and attributes. */
export function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Told apart on white and on black, also by eyes that see fewer colours; then by dashes.
const COLOURS = ["#3b82c4", "#d97706", "#2e9e6b", "#c2498b", "#8a6ad6", "#8c8c00", "#d1495b", "#4aa3a2"];
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];

export function colour(idx) {
  return COLOURS[idx % COLOURS.length];
}

export function dash(idx) {
  return DASHES[Math.floor(idx / COLOURS.length) % DASHES.length];
}
