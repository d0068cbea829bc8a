// Maps of patches: unpacked, brought to pixels, blended, coloured. A field is SIDE x SIDE levels from 0 to 1.

export const SIDE = 168;
const BINS = 1024;

export function bytes(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

export function floats(base64) {
  return new Float32Array(bytes(base64).buffer);
}

export function shorts(base64) {
  return new Uint16Array(bytes(base64).buffer);
}

export class Maps {
  constructor(packed) {
    this.shape = packed.shape;
    [this.rows, this.columns] = packed.shape.slice(-2);
    this.levels = bytes(packed.levels);
    this.ranges = floats(packed.ranges);
    this.count = this.ranges.length / 2;
  }

  // The numbers of one map, as the model gave them but for rounding to 256 levels.
  values(index) {
    const cells = this.rows * this.columns;
    const low = this.ranges[2 * index], step = (this.ranges[2 * index + 1] - low) / 255;
    return Float32Array.from(this.levels.subarray(index * cells, (index + 1) * cells), (level) => low + step * level);
  }

  mean(indices) {
    const sum = new Float32Array(this.rows * this.columns);
    for (const index of indices) this.values(index).forEach((value, cell) => { sum[cell] += value / indices.length; });
    return sum;
  }
}

// Linear between the centres of patches; scaled to its own range but for the highest 3 %, as `overlay.py` has it.
// cell: height and width of a patch as shares of the view.
export function field(values, rows, columns, cell) {
  const made = new Float32Array(SIDE * SIDE);
  const across = axis(columns, cell[1]), down = axis(rows, cell[0]);
  for (let y = 0; y < SIDE; y++) {
    const [top, bottom, v] = down[y];
    for (let x = 0; x < SIDE; x++) {
      const [left, right, u] = across[x];
      const above = values[top * columns + left] * (1 - u) + values[top * columns + right] * u;
      const below = values[bottom * columns + left] * (1 - u) + values[bottom * columns + right] * u;
      made[y * SIDE + x] = above * (1 - v) + below * v;
    }
  }
  return scale(made);
}

function axis(cells, share) {
  return Array.from({ length: SIDE }, (_, pixel) => {
    const place = Math.min(Math.max((pixel + 0.5) / SIDE / share - 0.5, 0), cells - 1);
    const first = Math.min(Math.floor(place), cells - 1);
    return [first, Math.min(first + 1, cells - 1), place - first];
  });
}

function scale(made) {
  let low = Infinity, high = -Infinity;
  for (const value of made) { low = Math.min(low, value); high = Math.max(high, value); }
  if (high > low) high = quantile(made, low, high, 0.97);
  const width = high - low || 1;
  return made.map((value) => Math.min((value - low) / width, 1));
}

function quantile(made, low, high, share) {
  const counts = new Uint32Array(BINS);
  for (const value of made) counts[Math.min(BINS - 1, Math.floor((value - low) / (high - low) * BINS))]++;
  let bin = 0;
  for (let seen = counts[0]; seen < share * made.length && bin < BINS - 1;) seen += counts[++bin];
  return low + (bin + 1) / BINS * (high - low);
}

// Between numbers 3 and 4 at 3.4: six tenths of the one, four of the other.
export function blend(position, get) {
  const first = Math.floor(position), share = position - first;
  const here = get(first);
  if (share < 0.01) return here;
  const next = get(first + 1);
  return here.map((value, i) => value * (1 - share) + next[i] * share);
}

export class Painter {
  constructor(colours, cover) {
    this.colours = bytes(colours);
    this.cover = bytes(cover);
    this.small = new OffscreenCanvas(SIDE, SIDE);
    this.pen = this.small.getContext("2d");
    this.image = this.pen.createImageData(SIDE, SIDE);
  }

  // The colours of the maps, from the lowest level to the highest.
  paintLegend(canvas) {
    const pen = canvas.getContext("2d"), image = pen.createImageData(256, 1);
    for (let level = 0; level < 256; level++) image.data.set([...this.colours.subarray(3 * level, 3 * level + 3), 255], 4 * level);
    pen.putImageData(image, 0, 0);
  }

  // A field, in the colours of the maps.
  paintField(pen, levels, width, height) {
    const pixels = this.image.data;
    for (let i = 0; i < levels.length; i++) {
      const level = Math.round(levels[i] * 255);
      pixels[4 * i] = this.colours[3 * level];
      pixels[4 * i + 1] = this.colours[3 * level + 1];
      pixels[4 * i + 2] = this.colours[3 * level + 2];
      pixels[4 * i + 3] = this.cover[level];
    }
    this.pen.putImageData(this.image, 0, 0);
    pen.imageSmoothingEnabled = true;
    pen.drawImage(this.small, 0, 0, width, height);
  }
}

// Colours (N, 3) of patches, one block each.
export function paintCells(pen, colours, rows, columns, cell, width, height) {
  const small = new OffscreenCanvas(columns, rows), own = small.getContext("2d");
  const image = own.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    image.data.set([colours[3 * i], colours[3 * i + 1], colours[3 * i + 2], 225], 4 * i);
  }
  own.putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, 0, 0, columns * cell[1] * width, rows * cell[0] * height);
}

// Lines between patches that are not the same token, around groups of several.
export function outlineGroups(pen, groups, rows, columns, cell, width, height) {
  const sizes = new Map();
  for (const group of groups) sizes.set(group, (sizes.get(group) ?? 0) + 1);
  const w = cell[1] * width, h = cell[0] * height;
  const several = (i) => sizes.get(groups[i]) > 1;
  const lines = new Path2D();
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const i = row * columns + column;
      const right = i + 1, below = i + columns;
      if (column + 1 < columns && groups[i] !== groups[right] && (several(i) || several(right))) {
        lines.moveTo((column + 1) * w, row * h);
        lines.lineTo((column + 1) * w, (row + 1) * h);
      }
      if (row + 1 < rows && groups[i] !== groups[below] && (several(i) || several(below))) {
        lines.moveTo(column * w, (row + 1) * h);
        lines.lineTo((column + 1) * w, (row + 1) * h);
      }
    }
  }
  for (const [colour, thick] of [["rgba(0,0,0,.55)", 3], ["#6fe3f5", 1.5]]) {
    pen.strokeStyle = colour;
    pen.lineWidth = thick * Math.max(1, width / 560);
    pen.stroke(lines);
  }
}
