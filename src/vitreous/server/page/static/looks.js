// What is known of one image and one model: each question is asked once, and its answer kept.

import { ask, askJson } from "./server.js";
import { Maps, bytes, field, floats, shorts } from "./maps.js";

const GREY = 512;
const KEPT = 4; // images whose answers and maps are kept
const recent = []; // the images that were looked at, the last one first

export class InputImage {
  constructor(name, file, sample = null) {
    Object.assign(this, { name, file, sample });
    this.looks = new Map();
  }

  look(card) {
    recent.splice(0, recent.length, this, ...recent.filter((other) => other !== this));
    for (const old of recent.splice(KEPT)) old.looks.clear();
    if (!this.looks.has(card.name)) this.#begin(card);
    return this.looks.get(card.name);
  }

  // One that fails is not kept, so that it can be tried again.
  #begin(card) {
    const look = new Look(this, card);
    this.looks.set(card.name, look);
    look.seen.catch(() => { if (this.looks.get(card.name) === look) this.looks.delete(card.name); });
  }
}

export async function fetchSample(number, name) {
  return new InputImage(name, await (await ask(`/page/samples/${number}`)).blob(), number);
}

class Look {
  constructor(image, card) {
    Object.assign(this, { image, card });
    this.kept = new Map();
    this.seen = this.#see();
  }

  async #see() {
    const found = await askJson("/page/image", { params: { model: this.card.name }, body: this.image.file });
    const view = new Blob([bytes(found.view)], { type: "image/png" });
    const viewed = await createImageBitmap(view);
    const whole = await createImageBitmap(this.image.file).catch(() => null); // a format that the browser does not know
    const [colour, grey] = this.#bases(whole, viewed, found);
    for (const drawn of [viewed, whole]) drawn?.close();
    return { ...found, view, colour, grey, probabilities: found.probabilities && floats(found.probabilities) };
  }

  // The part that the model sees, as sharp as the image is: in colour, and in the grey that maps lie on.
  #bases(whole, viewed, found) {
    const [left, top, right, bottom] = found.box;
    const ratio = (bottom - top) / (right - left);
    const tiny = right - left < 96;
    const width = tiny ? viewed.width : Math.min(2 * GREY, Math.max(GREY, Math.round(right - left)));
    const colour = new OffscreenCanvas(width, Math.max(1, Math.round(width * ratio)));
    const pen = colour.getContext("2d", { willReadFrequently: true });
    if (whole && !tiny) {
      const fit = whole.width / found.width; // a browser may ignore or apply what turned the image
      pen.drawImage(whole, left * fit, top * fit, (right - left) * fit, (bottom - top) * fit, 0, 0, colour.width, colour.height);
    } else {
      pen.drawImage(viewed, 0, 0, colour.width, colour.height);
    }
    const image = pen.getImageData(0, 0, colour.width, colour.height), data = image.data;
    for (let i = 0; i < data.length; i += 4) {
      data[i] = data[i + 1] = data[i + 2] = 0.75 * (0.299 * data[i] + 0.587 * data[i + 1] + 0.114 * data[i + 2]);
    }
    const grey = new OffscreenCanvas(colour.width, colour.height);
    grey.getContext("2d").putImageData(image, 0, 0);
    return [colour, grey];
  }

  #once(key, make) {
    if (!this.kept.has(key)) {
      const made = make();
      made.catch(() => this.kept.delete(key));
      this.kept.set(key, made);
    }
    return this.kept.get(key);
  }

  async #question(path, params) {
    const { view } = await this.seen;
    return askJson(path, { params: { model: this.card.name, ...params }, body: view });
  }

  #merge(merge) {
    return merge === this.card.merge ? null : merge;
  }

  inside(merge) {
    return this.#once(`inside ${merge}`, async () => {
      const found = await this.#question("/page/inside", { merge: this.#merge(merge) });
      return {
        attention: new Maps(found.attention),
        rollout: new Maps(found.rollout),
        colours: bytes(found.colours),
        groups: found.groups && shorts(found.groups),
        probabilities: found.probabilities && floats(found.probabilities),
        fields: new Map(),
      };
    });
  }

  classMaps(method, target, merge) {
    return this.#once(`${method} ${target} ${merge}`, async () => {
      const found = await this.#question("/page/maps", { method, target, merge: this.#merge(merge) });
      return { maps: new Maps(found), fields: new Map() };
    });
  }

  attention(layer, merge) {
    return this.#once(`attention ${layer} ${merge}`, async () => {
      return new Maps(await this.#question("/page/attention", { layer, merge: this.#merge(merge) }));
    });
  }

  hasAttention(layer, merge) {
    return this.kept.has(`attention ${layer} ${merge}`);
  }

  async covered(cells, merge) {
    const [rows, columns] = this.card.grid;
    const found = await this.#question("/page/cover", { cells: bits(cells, rows * columns), merge: this.#merge(merge) });
    return found.probabilities && floats(found.probabilities);
  }

  // What the network that answers for covered images says with nothing covered: the engine may compute in coarser numbers.
  uncovered(merge) {
    return this.#once(`uncovered ${merge}`, () => this.covered([], merge));
  }

  // Levels of one map, or of the mean of several, made once.
  fieldOf(found, maps, key, indices) {
    if (!found.fields.has(key)) {
      found.fields.set(key, field(maps.mean(indices), maps.rows, maps.columns, this.#cellOf(maps)));
    }
    return found.fields.get(key);
  }

  // A feature map may be coarser than what can be covered: it spans the view.
  #cellOf(maps) {
    const [rows, columns] = this.card.grid;
    return maps.rows === rows && maps.columns === columns ? this.card.cell : [1 / maps.rows, 1 / maps.columns];
  }
}

// Four cells to a hexadecimal digit, the first in its highest bit.
function bits(cells, count) {
  const digits = new Uint8Array(Math.ceil(count / 4));
  for (const cell of cells) digits[cell >> 2] |= 8 >> (cell & 3);
  return Array.from(digits, (digit) => digit.toString(16)).join("");
}
