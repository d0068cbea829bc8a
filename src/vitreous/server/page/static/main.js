// The page: images come in, panels show them, and the address says what is shown.

import { offerCamera } from "./camera.js";
import { Heads } from "./heads.js";
import { fetchSample, InputImage } from "./looks.js";
import { read, write } from "./link.js";
import { likeliest, percent } from "./bars.js";
import { Painter } from "./maps.js";
import { Panel, explainsClass, lastLayer, mostMerged } from "./panel.js";
import { Covered, describe } from "./patches.js";
import { savePng } from "./save.js";
import { askJson } from "./server.js";

const get = (id) => document.getElementById(id);

class App {
  constructor(start) {
    this.cards = new Map(start.models.map((card) => [card.name, card]));
    this.sampleNames = start.samples;
    this.painter = new Painter(start.colours, start.cover);
    this.covered = new Covered();
    this.panels = [];
    this.image = null;
    this.pinned = null;
    this.hovered = null;
    this.heads = new Heads(this);
    this.given = [];
    this.glossary = start.glossary;
    this.original = false; // whether the image is shown without its map
  }

  get tool() {
    return document.querySelector("input[name=tool]:checked").value;
  }

  startView(model) {
    const card = this.cards.get(model);
    const method = card.method ?? "none";
    return { model, method, layer: card.starts[method] ?? Math.max(card.layers - 1, 0), head: 0, target: null, merge: card.merge };
  }

  // Whatever an address says is brought to what there is.
  soundView(view) {
    const card = this.cards.get(view.model) ?? (this.cards.size === 1 ? [...this.cards.values()][0] : null);
    if (!card) return null;
    const usual = this.startView(card.name);
    const methods = [...card.methods, "none", ...(card.layers ? ["tokens"] : [])];
    const method = methods.includes(view.method) ? view.method : usual.method;
    return {
      model: card.name,
      method,
      layer: Math.min(view.layer ?? usual.layer, lastLayer(card, method)),
      head: Math.min(view.head ?? 0, card.heads),
      target: view.target !== null && view.target < card.labels.length ? Math.floor(view.target) : null,
      merge: card.merges ? Math.min(Math.floor(view.merge ?? card.merge), mostMerged(card)) : card.merge,
    };
  }

  // A list of a model's classes for the browser to complete from.
  listOf(card) {
    const id = `labels-${[...this.cards.keys()].indexOf(card.name)}`;
    if (!get(id)) {
      const list = document.createElement("datalist");
      list.id = id;
      list.append(...card.labels.map((label) => new Option(label)));
      document.body.append(list);
    }
    return id;
  }

  // state: what an address says of panels, covered cells and a patch; null for what is shown already.
  use(image, state = this.waiting) {
    this.waiting = null;
    this.image = image;
    this.covered.cells = new Set(state?.covered);
    this.covered.grid = state?.grid ?? this.covered.grid;
    document.body.classList.add("looking");
    for (const id of ["tools", "panels", "help"]) get(id).hidden = false;
    this.fail(null);
    this.note("");
    if (state?.views.length) this.arrange(state.views);
    else if (!this.panels.length) this.arrange([this.startView([...this.cards.keys()][0])]);
    else if (this.panels.length > 1) for (const panel of this.panels) panel.load(); // what is compared stays
    else this.panels[0].change({ target: null });
    const [rows, columns] = this.panels[0].card.grid, patch = state?.pinned ?? null;
    this.hovered = null;
    this.pinned = Number.isInteger(patch) && patch < rows * columns ? { panel: this.panels[0], cell: patch } : null;
    this.markCurrent();
    this.showCovered();
  }

  arrange(views) {
    get("panels").after(get("heads"));
    this.panels = views.map((view) => new Panel(this, view));
    get("panels").replaceChildren(...this.panels.map((panel) => panel.root));
    get("panels").className = this.panels.length > 1 ? "several" : "one";
    // Beside a single image, so that pointing at it shows something without scrolling; else below all of them.
    if (this.panels.length === 1) this.panels[0].root.querySelector(".bars").after(get("heads"));
    this.hovered = this.pinned = null;
    for (const panel of this.panels) panel.load();
  }

  remove(panel) {
    this.arrange(this.panels.filter((other) => other !== panel).map((other) => other.view));
    this.panels[0].canvas.focus();
  }

  addClass() {
    const first = this.panels[0], { card, ready } = first;
    if (!ready) return;
    const method = explainsClass(card, first.view.method) ? first.view.method : card.methods.find((name) => explainsClass(card, name));
    const other = likeliest(first.seen.probabilities, 2).find((number) => number !== first.target);
    const view = { ...first.view, method, layer: method === first.view.method ? first.view.layer : card.starts[method] ?? 0 };
    this.arrange([{ ...view, target: first.target }, { ...view, target: other }]);
  }

  addMethod() {
    const { view, methods, card } = this.panels[0];
    const method = methods[(methods.indexOf(view.method) + 1) % methods.length];
    this.arrange([view, { ...view, method, head: 0, layer: card.starts[method] ?? Math.min(view.layer, lastLayer(card, method)) }]);
  }

  allModels() {
    this.arrange([...this.cards.keys()].map((name) => this.startView(name)));
  }

  // On another grid a patch of the same number is another place.
  switchModel(panel, model) {
    if (String(panel.card.grid) !== String(this.cards.get(model).grid)) {
      if (this.hovered?.panel === panel) this.hovered = null;
      if (this.pinned?.panel === panel) this.pinned = null;
    }
    panel.change(this.startView(model));
  }

  // What is drawn over an image: the patch pointed at, and the one that is kept.
  paintMarks(pen, panel, width, height) {
    const { grid, cell } = panel.card;
    for (const [mark, colour] of [[this.hovered, "#ffffff"], [this.pinned, "#6fe3f5"]]) {
      if (!mark || mark.panel !== panel) continue;
      const box = [(mark.cell % grid[1]) * cell[1] * width, Math.floor(mark.cell / grid[1]) * cell[0] * height, cell[1] * width, cell[0] * height];
      const thick = Math.max(2, width / 280);
      for (const [paint, wide] of [["rgba(0,0,0,.6)", 2 * thick], [colour, thick]]) {
        pen.strokeStyle = paint;
        pen.lineWidth = wide;
        pen.strokeRect(...box);
      }
    }
  }

  cellOf(panel) {
    return [this.hovered, this.pinned].find((mark) => mark?.panel === panel)?.cell ?? null;
  }

  hover(panel, cell) {
    if (this.hovered?.panel === panel && this.hovered.cell === cell) return;
    this.hovered = cell === null ? null : { panel, cell };
    panel.draw();
    this.showHeads(panel);
  }

  pin(panel, cell) {
    const again = this.pinned?.panel === panel && this.pinned.cell === cell;
    this.pinned = again || cell === null ? null : { panel, cell };
    if (this.pinned) this.say(`Kept ${describe(this, panel, cell)}.`);
    this.changed(panel);
    for (const one of this.panels) one.draw();
  }

  release() {
    if (this.hovered || this.pinned) this.hovered = this.pinned = null;
    else {
      this.uncover();
      this.say("Nothing is covered.");
    }
    for (const panel of this.panels) panel.draw();
    this.changed(this.panels[0]);
  }

  showHeads(panel) {
    const mark = this.hovered ?? this.pinned;
    const attentive = mark?.panel ?? (panel?.card.heads ? panel : this.panels.find((one) => one.card.heads));
    this.heads.show(attentive, mark && mark.panel === attentive ? mark.cell : null);
  }

  cover(panel, cells, cover) {
    this.covered.takeGrid(panel.card.grid);
    this.covered.set(cells, cover);
    this.showCovered();
    for (const one of this.panels) { one.draw(); if (one.seen) one.recover(); }
    this.writeLink();
  }

  uncover() {
    this.covered.cells.clear();
    this.showCovered();
    for (const panel of this.panels) { panel.draw(); if (panel.seen) panel.recover(); }
    this.writeLink();
  }

  showOriginal(original) {
    this.original = original;
    get("original").setAttribute("aria-pressed", String(original));
    for (const panel of this.panels) panel.draw();
  }

  // Whether the models that are compared hold the same class for the likeliest.
  showVerdict() {
    const firsts = new Map(this.panels.filter((panel) => panel.ready && panel.best).map((panel) => [panel.view.model, panel.best]));
    get("verdict").hidden = firsts.size < 2;
    const said = [...firsts].map(([model, label]) => `${model} says ${label}`).join(", ");
    get("verdict").textContent = new Set(firsts.values()).size === 1 ? `The models agree: ${[...firsts.values()][0]}.` : `The models disagree: ${said}.`;
  }

  showCovered() {
    get("uncover").disabled = this.covered.cells.size === 0;
  }

  changed(panel) {
    this.showHeads(panel);
    this.showVerdict();
    this.writeLink();
    const { seen, card, methods } = this.panels[0]; // whose view the buttons start from
    get("add-class").hidden = !(seen?.probabilities && card.labels.length > 1 && card.methods.some((name) => explainsClass(card, name)));
    get("add-method").hidden = methods.length < 2;
  }

  writeLink() {
    clearTimeout(this.writing);
    this.writing = setTimeout(() => history.replaceState(null, "", `#${write(this.state())}`), 150);
  }

  state() {
    return {
      sample: this.image.sample,
      views: this.panels.map((panel) => panel.view),
      grid: this.covered.grid,
      covered: this.covered.cellsOn(this.covered.grid),
      pinned: this.pinned?.panel === this.panels[0] ? this.pinned.cell : null,
    };
  }

  // What an address says, of the sample that it names or of the image that is here; else it waits for one.
  async restore(fragment) {
    const state = read(fragment);
    state.views = state.views.map((view) => this.soundView(view)).filter(Boolean);
    if (state.sample !== null && state.sample in this.samples) this.use(await this.samples[state.sample], state);
    else if (state.views.length && this.image) this.use(this.image, state);
    else if (state.views.length) this.waiting = state;
  }

  // To a screen reader, once they have come to rest: the answers of every panel.
  tellAnswers() {
    clearTimeout(this.telling);
    this.telling = setTimeout(() => {
      const said = this.panels.map((panel) => {
        const now = panel.ready ? panel.answered ?? panel.seen.probabilities : null;
        const answers = now && likeliest(now, 3).map((number) => `${panel.card.labels[number]} ${percent(now[number])}`).join(", ");
        return answers && this.panels.length > 1 ? `${panel.title}: ${answers}` : answers;
      });
      if (said.some(Boolean)) this.say(said.filter(Boolean).join("; "));
    }, 500);
  }

  say(text) {
    get("spoken").textContent = text;
  }

  fail(error) {
    get("problem").hidden = !error;
    get("problem").textContent = error?.message ?? "";
  }

  // An image that cannot be read is not kept; after any other failure it can be tried again.
  forget(image, error) {
    const unreadable = [413, 422].includes(error.status);
    for (const button of document.querySelectorAll("#given button")) if (unreadable && button.image === image) button.remove();
    this.fail(new Error(`${image.name}: ${error.message}`));
  }

  note(text) {
    get("note").hidden = !text;
    get("note").textContent = text;
    this.say(text);
  }

  markCurrent() {
    for (const button of document.querySelectorAll(".strip button")) {
      button.setAttribute("aria-pressed", String(button.image === this.image));
    }
  }

  take(files) {
    const isImage = (file) => file.type.startsWith("image/") || file.type === "";
    const images = [...files].filter(isImage).map((file) => new InputImage(file.name || "image", file));
    for (const image of images) get("given").append(this.thumbnail(image));
    if (images.length) {
      get("given").hidden = false;
      this.use(images[0]);
    }
    const others = [...files].filter((file) => !isImage(file)).map((file) => file.name || "what was pasted");
    if (others.length) this.fail(new Error(`${others.join(", ")}: no image; give a JPEG, PNG or another kind of image.`));
  }

  thumbnail(image) {
    const button = document.createElement("button"), shown = document.createElement("img");
    button.type = "button";
    button.image = image;
    shown.src = URL.createObjectURL(image.file);
    for (const end of ["load", "error"]) shown.addEventListener(end, () => URL.revokeObjectURL(shown.src), { once: true });
    shown.alt = image.name;
    button.append(shown);
    button.addEventListener("click", () => this.use(image));
    return button;
  }

  async showSamples() {
    this.samples = this.sampleNames.map((name, number) => fetchSample(number, name));
    for (const sample of this.samples) get("samples").append(this.thumbnail(await sample));
  }
}

function listen(app) {
  for (const id of ["choose", "photograph"]) {
    get(id).addEventListener("change", (event) => { app.take(event.target.files); event.target.value = ""; });
  }
  offerCamera((files) => app.take(files), (error) => app.fail(error));
  addEventListener("paste", (event) => { if (event.clipboardData.files.length) app.take(event.clipboardData.files); });
  addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dragging"); });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dragging"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    app.take(event.dataTransfer.files);
  });
  addEventListener("hashchange", () => app.restore(location.hash).catch((error) => app.fail(error)));
  get("uncover").addEventListener("click", () => app.uncover());
  get("original").addEventListener("click", () => app.showOriginal(!app.original));
  addEventListener("keydown", (event) => {
    const typing = event.target.matches?.("input[type=text], input[type=password], select");
    if (event.key.toLowerCase() === "o" && app.image && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) app.showOriginal(!app.original);
  });
  get("add-class").addEventListener("click", () => app.addClass());
  get("add-method").addEventListener("click", () => app.addMethod());
  get("all-models").addEventListener("click", () => app.allModels());
  get("all-models").hidden = app.cards.size < 2;
  get("save").addEventListener("click", () => savePng(app).catch((error) => app.fail(error)));
  get("link").addEventListener("click", () => copyLink(app));
  for (const radio of document.querySelectorAll("input[name=tool]")) {
    radio.addEventListener("change", () => document.body.classList.toggle("covering", app.tool === "cover"));
  }
}

async function copyLink(app) {
  history.replaceState(null, "", `#${write(app.state())}`);
  let done = "The link is in the address bar.";
  try {
    await navigator.clipboard.writeText(location.href);
    done = "Link copied.";
  } catch { /* no permission, or no secure origin */ }
  app.note(app.image.sample === null ? `${done} It keeps everything but your image, which stays with you: whoever opens it adds one.` : done);
}

// What a model tells apart, as a question.
function question({ name, labels }) {
  if (!labels.length) return `What does ${name} see?`;
  if (labels.length <= 4) return `Is it ${labels.slice(0, -1).join(", ")}${labels.length > 1 ? " or " : ""}${labels.at(-1)}?`;
  return `Which of ${labels.length.toLocaleString("en")} classes: ${labels.slice(0, 3).join(", ")} …?`;
}

// While models are loaded the server says so, and the page opens by itself when they answer.
async function waitForModels() {
  const invitation = get("invitation").textContent;
  for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault()); // else the browser opens the file
  for (;;) {
    try {
      const start = await askJson("/page/start", { tries: 1 });
      document.body.classList.remove("loading");
      get("invitation").textContent = invitation;
      return start;
    } catch (error) {
      if (error.status !== 503) throw error;
      document.body.classList.add("loading");
      get("invitation").textContent = "The models are loading, which can take minutes the first time. This page opens by itself.";
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}

async function begin() {
  try {
    const app = new App(await waitForModels());
    const [first] = app.cards.values();
    const alike = new Set([...app.cards.values()].map((card) => String(card.labels))).size === 1;
    const names = [...app.cards.keys()];
    get("question").textContent = alike ? question(first) : `What do ${names.length > 3 ? `${names.length} models` : names.join(" and ")} see?`;
    document.title = `${get("question").textContent} vitreous`;
    get("about").textContent = app.cards.size > 1 ? `${app.cards.size} models: ${names.join(", ")}` : `${first.name}: ${first.summary}`;
    listen(app);
    const samples = app.showSamples();
    await app.restore(location.hash);
    await samples;
    app.markCurrent();
  } catch (error) {
    get("problem").hidden = false;
    get("problem").textContent = error.message;
  }
}

begin();
