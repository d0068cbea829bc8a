// Pointing at patches and covering them, by pointer and by keys; and what is covered.

const BRUSH = 0.085; // of the view's width: patches whose centre is as near as this to the pointer

export class Covered {
  constructor() {
    this.grid = [1, 1];
    this.cells = new Set();
  }

  // The same region on another grid: the cells whose centre lies in a covered one.
  cellsOn(grid) {
    if (grid[0] === this.grid[0] && grid[1] === this.grid[1]) return [...this.cells].sort((a, b) => a - b);
    const found = [];
    for (let i = 0; i < grid[0] * grid[1]; i++) {
      const row = Math.floor(((Math.floor(i / grid[1]) + 0.5) / grid[0]) * this.grid[0]);
      const column = Math.floor((((i % grid[1]) + 0.5) / grid[1]) * this.grid[1]);
      if (this.cells.has(row * this.grid[1] + column)) found.push(i);
    }
    return found;
  }

  takeGrid(grid) {
    this.cells = new Set(this.cellsOn(grid));
    this.grid = grid;
  }

  set(cells, cover) {
    for (const cell of cells) cover ? this.cells.add(cell) : this.cells.delete(cell);
  }

  paint(pen, card, width, height) {
    const cells = this.cellsOn(card.grid);
    if (!cells.length) return;
    const w = card.cell[1] * width, h = card.cell[0] * height;
    const shape = new Path2D();
    for (const cell of cells) shape.rect((cell % card.grid[1]) * w, Math.floor(cell / card.grid[1]) * h, w + 0.5, h + 0.5);
    pen.save();
    pen.clip(shape);
    pen.fillStyle = "#6d7378";
    pen.fillRect(0, 0, width, height);
    pen.strokeStyle = "#8b9196";
    pen.lineWidth = Math.max(1, width / 500);
    pen.beginPath();
    for (let x = -height; x < width; x += width / 60) { pen.moveTo(x, height); pen.lineTo(x + height, 0); }
    pen.stroke();
    pen.restore();
  }
}

export function listenToPatches(panel) {
  const { canvas, app } = panel;
  let painting = null;

  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  };
  const cellAt = ([x, y]) => {
    const { grid, cell } = panel.card;
    if (x < 0 || y < 0 || x >= 1 || y >= 1) return null;
    return Math.min(Math.floor(y / cell[0]), grid[0] - 1) * grid[1] + Math.min(Math.floor(x / cell[1]), grid[1] - 1);
  };
  const under = ([x, y]) => {
    const { grid, cell } = panel.card, found = new Set([cellAt([x, y])]);
    for (let i = 0; i < grid[0] * grid[1]; i++) {
      const dx = ((i % grid[1]) + 0.5) * cell[1] - x, dy = (Math.floor(i / grid[1]) + 0.5) * cell[0] - y;
      if (Math.hypot(dx, dy) < BRUSH) found.add(i);
    }
    found.delete(null);
    return found;
  };
  const stroke = (to) => {
    const from = painting.last ?? to, steps = Math.ceil(Math.hypot(to[0] - from[0], to[1] - from[1]) / 0.03) || 1;
    for (let i = 1; i <= steps; i++) {
      const share = i / steps;
      app.cover(panel, under([from[0] + (to[0] - from[0]) * share, from[1] + (to[1] - from[1]) * share]), painting.cover);
    }
    painting.last = to;
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (!panel.seen || event.button || app.tool !== "cover") return;
    const at = place(event);
    event.preventDefault();
    canvas.setPointerCapture(event.pointerId);
    app.covered.takeGrid(panel.card.grid);
    painting = { cover: !app.covered.cells.has(cellAt(at)), last: null };
    stroke(at);
  });
  // A finger that scrolls presses too, but clicks nothing.
  canvas.addEventListener("click", (event) => {
    if (panel.seen && app.tool === "point") app.pin(panel, cellAt(place(event)));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!panel.seen) return;
    if (painting) stroke(place(event));
    else app.hover(panel, cellAt(place(event)));
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { painting = null; });
  canvas.addEventListener("pointerleave", () => app.hover(panel, null));
  canvas.addEventListener("blur", () => app.hover(panel, null));
  canvas.addEventListener("keydown", (event) => {
    if (panel.seen && !event.altKey && !event.ctrlKey && !event.metaKey && pressed(panel, event.key)) event.preventDefault();
  });
}

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

function pressed(panel, key) {
  const { app } = panel, { grid } = panel.card;
  const middle = Math.floor(grid[0] / 2) * grid[1] + Math.floor(grid[1] / 2);
  const cell = app.cellOf(panel) ?? middle;
  if (MOVES[key]) {
    const row = Math.min(Math.max(Math.floor(cell / grid[1]) + MOVES[key][0], 0), grid[0] - 1);
    const column = Math.min(Math.max((cell % grid[1]) + MOVES[key][1], 0), grid[1] - 1);
    app.hover(panel, row * grid[1] + column);
    app.say(describe(app, panel, row * grid[1] + column));
  } else if (key === " ") {
    app.covered.takeGrid(grid);
    const cover = !app.covered.cells.has(cell);
    app.cover(panel, [cell], cover);
    app.hover(panel, cell);
    app.say(`${cover ? "Covered" : "Uncovered"} ${placeOf(panel, cell)}.`);
  } else if (key === "Enter") app.pin(panel, cell);
  else if (key === "Escape") app.release();
  else return false;
  return true;
}

export function describe(app, panel, cell) {
  const covered = app.covered.cellsOn(panel.card.grid).includes(cell) ? ", covered" : "";
  const level = panel.levelAt(cell);
  return `${placeOf(panel, cell)}${covered}${level === null ? "" : `, map ${Math.round(100 * level)}\u00a0%`}`;
}

export function placeOf(panel, cell) {
  const columns = panel.card.grid[1];
  return `row ${Math.floor(cell / columns) + 1}, column ${(cell % columns) + 1}`;
}
