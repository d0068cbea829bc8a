// A slider that glides between whole numbers under the pointer, and steps from one to the next by keys.

const STEPS = { ArrowLeft: -1, ArrowDown: -1, PageDown: -3, ArrowRight: 1, ArrowUp: 1, PageUp: 3 };
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class Slider {
  constructor(root, name, changed) {
    Object.assign(this, { root, name, changed });
    this.input = root.querySelector("input");
    this.output = root.querySelector("output");
    this.input.addEventListener("input", () => {
      cancelAnimationFrame(this.frame); // whoever drags it takes over from a glide
      this.#go(Number(this.input.value));
    });
    this.input.addEventListener("change", () => this.#glide(Math.round(this.input.value)));
    this.input.addEventListener("keydown", (event) => {
      const step = STEPS[event.key] ?? { Home: -Infinity, End: Infinity }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      this.#glide(Math.min(Math.max(Math.round(this.goal ?? this.input.value) + step, 0), Number(this.input.max)));
    });
  }

  // names: what the numbers after the usual ones are called.
  set(value, max, names = []) {
    this.names = names;
    this.input.max = max;
    this.input.value = value;
    this.last = value;
    this.#show();
  }

  #go(value) {
    this.input.value = value;
    this.#show();
    if (value === this.last) return;
    this.last = value;
    this.changed(value);
  }

  #show() {
    const whole = Math.round(this.input.value), beyond = whole - (this.input.max - this.names.length) - 1;
    const text = this.names[beyond] ?? this.name(whole);
    this.output.textContent = text;
    this.input.setAttribute("aria-valuetext", text);
  }

  // To a whole number, in a moment; at once where there is nothing between, and for whoever wants no motion.
  #glide(goal) {
    cancelAnimationFrame(this.frame);
    const from = Number(this.input.value), start = performance.now();
    this.goal = goal;
    const step = (now) => {
      const share = calm.matches || Number(this.input.step) >= 1 ? 1 : Math.min((now - start) / 180, 1);
      this.#go(share === 1 ? goal : from + (goal - from) * share * (2 - share));
      if (share < 1) this.frame = requestAnimationFrame(step);
      else this.goal = null;
    };
    step(start);
  }
}
