// The state of the page as the fragment of its address, and back. An image is in it only where it is a sample.

const MAX_CELLS = 2 ** 14; // the same as in routes.py
const MAX_PANELS = 16; // each asks the server about the image
const FIELDS = ["model", "method", "layer", "head", "target", "merge"];

export function write(state) {
  const parts = new URLSearchParams();
  if (state.sample !== null) parts.set("sample", state.sample);
  for (const view of state.views) {
    parts.append("panel", FIELDS.map((name) => encodeURIComponent(short(view[name]))).join(","));
  }
  if (state.covered.length) parts.set("covered", `${state.grid.join("x")}:${ranges(state.covered)}`);
  if (state.pinned !== null) parts.set("patch", state.pinned);
  return parts.toString();
}

export function read(fragment) {
  const parts = new URLSearchParams(fragment.replace(/^#/, ""));
  const views = parts.getAll("panel").slice(0, MAX_PANELS).map((text) => {
    const words = text.split(",").map(decode);
    return Object.fromEntries(FIELDS.map((name, i) => [name, i < 2 ? words[i] ?? "" : whole(words[i])]));
  });
  const [grid, covered] = (parts.get("covered") ?? "").split(":");
  const sides = grid ? grid.split("x").map(Number) : null;
  const sound = sides?.length === 2 && sides.every((side) => Number.isInteger(side) && side >= 1) && sides[0] * sides[1] <= MAX_CELLS;
  return {
    sample: whole(parts.get("sample")),
    views,
    grid: sound ? sides : null,
    covered: sound ? unranged(covered ?? "", sides[0] * sides[1]) : [],
    pinned: whole(parts.get("patch")),
  };
}

const short = (value) => (value === null ? "" : typeof value === "number" ? String(Math.round(100 * value) / 100) : value);
const whole = (text) => (text && Number.isFinite(Number(text)) && Number(text) >= 0 ? Number(text) : null);

function decode(text) {
  try { return decodeURIComponent(text); } catch { return ""; }
}

// 3-6.9: numbers in order, runs as first and last.
function ranges(numbers) {
  const runs = [];
  for (const number of numbers) {
    const last = runs.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([first, last]) => (first === last ? first : `${first}-${last}`)).join(".");
}

function unranged(text, count) {
  const numbers = [];
  for (const run of text.split(".")) {
    if (!/^\d+(-\d+)?$/.test(run)) continue;
    const [first, last = first] = run.split("-").map(Number);
    for (let i = first; i <= Math.min(last, count - 1); i++) numbers.push(i);
  }
  return numbers;
}
