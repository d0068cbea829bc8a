// Small multiples: what one place, or the answer, attends to in every head.

import { field } from "./maps.js";
import { placeOf } from "./patches.js";

const SIDE = 224;
const REST = 90; // milliseconds: whoever moves a slider past a layer does not ask for it

export class Heads {
  constructor(app) {
    this.app = app;
    this.section = document.getElementById("heads");
    this.list = document.getElementById("multiples");
    this.canvases = [];
  }

  async show(panel, cell) {
    const { card, view } = panel ?? {};
    const inside = panel?.ready ? panel.inside : null;
    this.section.hidden = !(card?.heads && panel.seen);
    if (this.section.hidden) return;
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const layer = Math.min(Math.round(view.layer), card.layers - 1);
    if (cell !== null && !panel.look.hasAttention(layer, view.merge)) {
      await new Promise((resolve) => setTimeout(resolve, REST));
      if (turn !== this.turn) return;
    }
    try {
      const found = cell === null ? (inside ?? (await panel.look.inside(view.merge))).attention : await panel.look.attention(layer, view.merge);
      if (turn !== this.turn) return;
      this.#title(panel, cell, layer);
      this.#match(panel, card.heads);
      const places = cell === null ? 1 : found.shape[1];
      const own = found.rows === card.grid[0] && found.columns === card.grid[1];
      const cells = own ? card.cell : [1 / found.rows, 1 / found.columns];
      for (let head = 0; head < card.heads; head++) {
        const index = cell === null ? layer * card.heads + head : head * places + cell;
        this.#draw(panel, this.canvases[head], field(found.values(index), found.rows, found.columns, cells), cell);
      }
    } catch (error) {
      this.app.fail(error);
    }
  }

  #title(panel, cell, layer) {
    const who = cell === null ? "Where the answer looks" : `Where ${placeOf(panel, cell)} looks`;
    document.getElementById("heads-title").textContent = `${who}, in every head of layer ${layer}`;
    document.getElementById("heads-note").textContent = "Point at a patch to see what it attends to; a click keeps it. A click on a head shows it large.";
  }

  #match(panel, count) {
    this.panel = panel;
    if (this.canvases.length === count) return;
    this.list.replaceChildren();
    this.canvases = Array.from({ length: count }, (_, head) => {
      const button = document.createElement("button"), canvas = document.createElement("canvas"), name = document.createElement("span");
      button.type = "button";
      name.textContent = `head ${head}`;
      canvas.setAttribute("aria-hidden", "true");
      button.append(canvas, name);
      button.addEventListener("click", () => {
        const { view, card } = this.panel;
        this.panel.change({ method: "attention", head: head + 1, layer: Math.min(Math.round(view.layer), card.layers - 1) });
      });
      this.list.append(button);
      return canvas;
    });
  }

  #draw(panel, canvas, levels, cell) {
    const { grey } = panel.seen, { grid, cell: size } = panel.card;
    const height = Math.round((SIDE * grey.height) / grey.width);
    if (canvas.width !== SIDE || canvas.height !== height) Object.assign(canvas, { width: SIDE, height });
    const pen = canvas.getContext("2d");
    pen.drawImage(grey, 0, 0, SIDE, height);
    this.app.painter.paintField(pen, levels, SIDE, height);
    if (cell === null) return;
    pen.lineWidth = 3;
    pen.strokeStyle = "#6fe3f5";
    pen.strokeRect((cell % grid[1]) * size[1] * SIDE, Math.floor(cell / grid[1]) * size[0] * height, size[1] * SIDE, size[0] * height);
  }
}
