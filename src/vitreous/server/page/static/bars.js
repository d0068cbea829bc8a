// The likeliest classes as bars; with something covered, where each was before.

const SHOWN = 5;

// One decimal, as `percent` of vitreous/report/numbers.py.
export function percent(probability) {
  return `${(100 * probability).toFixed(1)}\u00a0%`;
}

export function highest(probabilities) {
  return probabilities.reduce((best, chance, number) => (chance > probabilities[best] ? number : best), 0);
}

export function likeliest(probabilities, count = SHOWN) {
  return Array.from(probabilities.keys()).sort((a, b) => probabilities[b] - probabilities[a]).slice(0, count);
}

export class Bars {
  constructor(list, chosen) {
    Object.assign(this, { list, chosen });
    this.rows = new Map();
  }

  // probabilities: as the image is; now: with what is covered. The order stays, so that eyes need not search.
  show(labels, probabilities, now, target) {
    if (!probabilities) return this.list.replaceChildren();
    const shown = likeliest(probabilities);
    for (const other of [highest(now), target]) if (other !== null && !shown.includes(other)) shown.push(other);
    const before = this.rows;
    this.rows = new Map(shown.map((number) => [number, before.get(number) ?? this.#row(number)]));
    const winner = highest(now), other = winner !== highest(probabilities);
    for (const [number, row] of this.rows) {
      this.#fill(row, labels[number], probabilities[number], now[number], number === target, other && number === winner);
    }
    const wanted = [...this.rows.values()];
    if (wanted.some((row, i) => this.list.children[i] !== row) || this.list.children.length !== wanted.length) {
      this.list.replaceChildren(...wanted);
    }
  }

  #row(number) {
    const row = document.createElement("li"), button = document.createElement("button");
    button.type = "button";
    button.title = "Show what spoke for it";
    button.innerHTML = '<span><span class="name"></span><em class="winner" hidden>now first</em></span><span class="chance"></span><span class="bar" aria-hidden="true"><i></i><b></b></span>';
    button.addEventListener("click", () => this.chosen(number));
    row.append(button);
    return row;
  }

  #fill(row, label, before, now, explained, won) {
    row.querySelector(".winner").hidden = !won;
    row.querySelector(".name").textContent = label; // another one's where the model has changed
    row.querySelector("button").setAttribute("aria-pressed", explained);
    row.querySelector(".chance").textContent = percent(now);
    row.querySelector("i").style.width = `${100 * now}%`;
    const tick = row.querySelector("b");
    tick.hidden = Math.abs(before - now) < 0.002;
    tick.style.left = `${100 * before}%`;
  }
}
