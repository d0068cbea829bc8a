// One image seen by one model in one way, with its controls and the answers.

import { Bars, highest } from "./bars.js";
import { SIDE, blend, outlineGroups, paintCells } from "./maps.js";
import { Slider } from "./slider.js";
import { listenToPatches } from "./patches.js";

// What a panel shows beside the explanation methods, which the model's card describes.
const PLAIN = {
  tokens: { title: "Tokens as colours", hint: "Like colours: alike to the model, after this layer.", explains_class: false, layered: true },
  none: { title: "Plain image", hint: "The image as it is.", explains_class: false, layered: false },
};

// The card of a method: its title, its hint, whether it explains a class, whether it looks at one layer at a time.
export function methodCard(card, method) {
  return card.method_cards[method] ?? PLAIN[method];
}

export function explainsClass(card, method) {
  return methodCard(card, method).explains_class;
}

// As much as is of use, or as the model merges of itself.
export function mostMerged(card) {
  return Math.max(16, card.merge);
}

// Attention pooling, where a model has it, looks once more after the layers.
export function lastLayer(card, method) {
  return Math.max(card.layers - 1, 0) + (method === "attention" && card.pooling ? 1 : 0);
}

export class Panel {
  // view: { model, method, layer, head, target, merge }; target null is the likeliest class.
  constructor(app, view) {
    Object.assign(this, { app, view });
    this.root = document.getElementById("panel-template").content.firstElementChild.cloneNode(true);
    this.canvas = this.root.querySelector("canvas");
    this.pen = this.canvas.getContext("2d");
    this.bars = new Bars(this.root.querySelector(".bars"), (target) => this.change({ target, ...this.#forClass() }));
    this.#wire();
    this.#explainWords();
    app.painter.paintLegend(this.#part(".legend canvas"));
    listenToPatches(this);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  get card() {
    return this.app.cards.get(this.view.model);
  }

  // Whether what it holds is of its model and its image, not of those before.
  get ready() {
    return Boolean(this.seen) && this.drawnFor === this.look;
  }

  get target() {
    return this.view.target ?? (this.seen?.probabilities ? highest(this.seen.probabilities) : null);
  }

  get title() {
    const about = explainsClass(this.card, this.view.method) && this.target !== null ? ` for ${this.card.labels[this.target]}` : "";
    return `${methodCard(this.card, this.view.method).title}${about}, ${this.card.name}`;
  }

  get methods() {
    return [...this.card.methods, ...(this.card.layers ? ["tokens"] : []), "none"];
  }

  // A click on a bar asks why: where the method says nothing of classes, take one that does.
  #forClass() {
    if (explainsClass(this.card, this.view.method)) return {};
    const method = this.methods.find((name) => explainsClass(this.card, name));
    return method ? { method, layer: this.card.starts[method] ?? 0 } : {};
  }

  #part(name) {
    return this.root.querySelector(name);
  }

  #wire() {
    this.#part(".close").addEventListener("click", () => this.app.remove(this));
    const [model, method] = [this.#part(".model select"), this.#part(".method select")];
    for (const name of this.app.cards.keys()) model.add(new Option(name));
    model.addEventListener("change", () => this.app.switchModel(this, model.value));
    method.addEventListener("change", () => {
      this.change({ method: method.value, layer: this.card.starts[method.value] ?? this.card.layers - 1, head: 0 });
    });
    this.field = this.#part(".target input");
    this.field.addEventListener("change", () => this.#chooseClass());
    this.layer = new Slider(this.#part(".layer"), (value) => `${value}`, (layer) => this.change({ layer }, true));
    this.head = new Slider(this.#part(".head"), (value) => (value ? `${value - 1}` : "mean"), (head) => this.change({ head }, true));
    this.merge = new Slider(this.#part(".merge"), (value) => (value ? `${value}` : "none"), (merge) => this.change({ merge }));
  }

  // A "?" beside each word that the glossary has, which shows its sentence.
  #explainWords() {
    const meaning = this.#part(".meaning");
    for (const [word, sentence] of Object.entries(this.app.glossary)) {
      const place = this.#part(`.asked.${word}`);
      if (!place) continue;
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "why", textContent: "?" });
      button.setAttribute("aria-label", `What is ${word}?`);
      button.addEventListener("click", () => {
        const open = !meaning.hidden && meaning.dataset.word === word;
        meaning.hidden = open;
        meaning.dataset.word = word;
        meaning.textContent = open ? "" : sentence;
      });
      place.append(button);
    }
  }

  // The class that is likeliest now, with what is covered.
  get best() {
    const now = this.answered ?? this.seen?.probabilities;
    return now ? this.card.labels[highest(now)] : null;
  }

  #chooseClass() {
    const wanted = this.field.value.trim().toLowerCase();
    const target = this.card.labels.findIndex((label) => label.toLowerCase() === wanted);
    if (target < 0 && wanted) this.app.say(`${this.field.value} is not one of the model's classes.`);
    if (target < 0) this.#showControls();
    else this.change({ target });
  }

  // only: nothing but a slider between maps that are here already.
  change(changes, only = false) {
    Object.assign(this.view, changes);
    if (only && this.data) {
      this.#showHint();
      this.draw();
      this.app.changed(this);
    } else this.load();
  }

  async load() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    this.look = this.app.image.look(this.card);
    this.root.setAttribute("aria-busy", "true");
    this.#showControls();
    try {
      const seen = await this.look.seen;
      if (turn !== this.turn) return;
      const other = this.seen !== seen;
      this.seen = seen;
      this.drawnFor = this.look;
      if (other) this.answered = this.before = this.data = this.inside = null;
      this.#showSeen();
      this.draw();
      this.app.changed(this);
      const [data, inside] = await this.#ask();
      if (turn !== this.turn) return;
      Object.assign(this, { data, inside });
      await this.recover();
      if (turn !== this.turn) return;
      this.#showControls();
      this.#showBars();
      this.draw();
      this.app.changed(this);
    } catch (error) {
      if (turn === this.turn) this.#failed(error);
    } finally {
      if (turn === this.turn) this.root.removeAttribute("aria-busy");
    }
  }

  // An image that cannot be shown leaves nothing of the one before it.
  #failed(error) {
    if (this.drawnFor === this.look) return this.app.fail(error);
    this.seen = this.data = this.inside = this.answered = this.before = this.drawnFor = null;
    this.pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.#part(".saw").textContent = "";
    this.bars.show([], null);
    this.app.forget(this.look.image, error);
    this.app.changed(this);
  }

  // The maps that the method draws, and what is inside, where tokens are drawn, listed or merged.
  async #ask() {
    const { method, merge } = this.view;
    const inside = this.card.layers ? this.look.inside(merge) : null;
    if (explainsClass(this.card, method)) {
      return [await this.look.classMaps(method, this.target, merge), merge ? await inside : null];
    }
    return method === "none" ? [{}, merge && inside ? await inside : null] : [await inside, await inside];
  }

  // The answer with the cells that are covered now; while one is under way the latest wish waits.
  async recover() {
    const { look, seen, card } = this, { merge } = this.view;
    const cells = this.app.covered.cellsOn(card.grid);
    const wish = (this.wish = [look, cells.join(), merge]); // a look is one model's at one image
    if (this.recovering || this.drawnFor !== look) return; // what is loading asks when it is here
    this.recovering = true;
    try {
      const all = cells.length === card.grid[0] * card.grid[1];
      const plain = merge === card.merge ? seen.probabilities : (await look.inside(merge)).probabilities;
      const asks = cells.length && !all && seen.probabilities;
      const [before, answered] = asks ? await Promise.all([look.uncovered(merge), look.covered(cells, merge)]) : [null, plain];
      if (this.look === look) Object.assign(this, { before, answered });
      if (all) this.app.say("Everything is covered: there is nothing left to look at.");
    } catch (error) {
      this.app.fail(error);
    } finally {
      this.recovering = false;
    }
    if (this.look === look) {
      this.#showBars();
      this.#showHint();
    }
    if (this.wish.some((part, i) => part !== wish[i])) await this.recover();
  }

  #showBars() {
    this.app.showVerdict();
    this.bars.show(this.card.labels, this.before ?? this.seen.probabilities, this.answered ?? this.seen.probabilities, this.target);
    this.app.tellAnswers();
  }

  #showSeen() {
    const { width, height, box } = this.seen;
    const share = ((box[2] - box[0]) * (box[3] - box[1])) / (width * height);
    const part = share > 0.995 ? "all of it" : `the middle, ${Math.round(100 * share)}\u00a0% of its area`;
    const how = this.card.covering === "left out" ? "are left out" : "are painted in the mean colour";
    this.#part(".saw").textContent = `${width} × ${height} pixels; the model sees ${part}, at ${this.card.size[1]} × ${this.card.size[0]}. Covered places ${how}.`;
    this.#showBars();
  }

  #showControls() {
    const { card, view } = this;
    const shown = (name, show) => { this.#part(name).hidden = !show; };
    shown(".close", this.app.panels.length > 1);
    const several = this.app.cards.size > 1;
    shown(".model", several);
    shown(".about", several);
    this.#part(".about").textContent = card.summary;
    this.#part(".model select").value = view.model;
    this.#part(".method select").replaceChildren(...this.methods.map((name) => new Option(methodCard(card, name).title, name)));
    this.#part(".method select").value = view.method;
    shown(".target", explainsClass(card, view.method));
    this.field.setAttribute("list", this.app.listOf(card));
    this.field.value = this.target === null ? "" : card.labels[this.target];
    const last = lastLayer(card, view.method);
    shown(".layer", last > 0 && methodCard(card, view.method).layered);
    this.layer.set(view.layer, last, last >= Math.max(card.layers, 1) ? ["pooling"] : []);
    shown(".head", view.method === "attention" && card.heads > 1);
    this.head.set(view.head, card.heads);
    shown(".merge", card.merges);
    shown(".legend", !["none", "tokens"].includes(view.method));
    this.merge.set(view.merge, mostMerged(card));
    this.#part(".missing").textContent = card.missing ?? "";
    this.#showHint();
  }

  #showHint() {
    const { view, card, inside } = this;
    let { hint } = methodCard(card, view.method);
    if (view.merge && inside?.groups) {
      const groups = this.groups();
      hint += ` ${groups.length} patches are ${new Set(groups).size} tokens after it.`;
    }
    if (this.app.covered.cells.size && view.method !== "none") hint += " The map is of the image with nothing covered.";
    this.#part(".hint").textContent = hint;
    this.root.setAttribute("aria-label", this.title);
    this.canvas.setAttribute("aria-label", `${this.app.image?.name ?? "Image"}, ${methodCard(card, view.method).title}, ${card.name}: ${card.grid[0]} by ${card.grid[1]} patches`);
  }

  groups() {
    const cells = this.card.grid[0] * this.card.grid[1];
    const layer = Math.min(Math.round(this.view.layer), this.card.layers - 1);
    return this.inside.groups.subarray(layer * cells, (layer + 1) * cells);
  }

  // Until another model, or another image, has answered, what was painted last stays.
  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      if (this.ready) this.paint(this.pen, this.#fit());
    });
  }

  #fit() {
    const width = Math.round(this.canvas.clientWidth * Math.min(devicePixelRatio, 2)) || 1;
    const height = Math.round((width * this.seen.grey.height) / this.seen.grey.width);
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    return [width, height];
  }

  paint(pen, [width, height], marks = true) {
    const { method } = this.view;
    const ready = this.data && this.drawnBy(method) && !this.app.original;
    pen.imageSmoothingEnabled = true;
    pen.imageSmoothingQuality = "high";
    pen.drawImage(ready && method !== "none" ? this.seen.grey : this.seen.colour, 0, 0, width, height);
    if (ready && method === "tokens") {
      paintCells(pen, blend(this.view.layer, (layer) => this.#coloursOf(layer)), ...this.card.grid, this.card.cell, width, height);
    } else if (ready && method !== "none") {
      this.app.painter.paintField(pen, this.#levels(), width, height);
    }
    if (this.view.merge && this.inside?.groups && !this.app.original) outlineGroups(pen, this.groups(), ...this.card.grid, this.card.cell, width, height);
    this.app.covered.paint(pen, this.card, width, height);
    if (marks) this.app.paintMarks(pen, this, width, height);
  }

  // Whether what was loaded is what this method draws: after a change it is not, for a moment.
  drawnBy(method) {
    if (method === "none") return true;
    return explainsClass(this.card, method) ? this.data.maps !== undefined : this.data.attention !== undefined;
  }

  // How high the map is in the middle of a patch, from 0 to 1; null where none is drawn.
  levelAt(cell) {
    const { method } = this.view, { grid, cell: size } = this.card;
    if (!this.data || !this.ready || !this.drawnBy(method) || ["none", "tokens"].includes(method)) return null;
    const pixel = (place, share) => Math.min(Math.floor((place + 0.5) * share * SIDE), SIDE - 1);
    return this.#levels()[pixel(Math.floor(cell / grid[1]), size[0]) * SIDE + pixel(cell % grid[1], size[1])];
  }

  #coloursOf(layer) {
    const count = 3 * this.card.grid[0] * this.card.grid[1];
    return this.data.colours.subarray(layer * count, (layer + 1) * count);
  }

  #levels() {
    const { method, layer, head } = this.view;
    const { data, look } = this;
    if (method === "attention") {
      const heads = data.attention.shape[1];
      const one = (l, h) => {
        const indices = h ? [l * heads + h - 1] : Array.from({ length: heads }, (_, i) => l * heads + i);
        return look.fieldOf(data, data.attention, `${l} ${h}`, indices);
      };
      return blend(head, (h) => blend(layer, (l) => one(l, h)));
    }
    const maps = method === "rollout" ? data.rollout : data.maps;
    return blend(Math.min(layer, maps.count - 1), (l) => look.fieldOf(data, maps, `${method} ${l}`, [l]));
  }
}
