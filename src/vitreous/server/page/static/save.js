// The panels as one image, with what they show and the answers below.

import { likeliest, percent } from "./bars.js";
import { explainsClass, methodCard } from "./panel.js";

const WIDE = 720, GAP = 36, LINE = 30, FONT = "system-ui, sans-serif";

export async function savePng(app) {
  const panels = app.panels.filter((panel) => panel.ready);
  if (!panels.length) return;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const heights = panels.map(({ seen }) => Math.round((WIDE * seen.grey.height) / seen.grey.width));
  const page = document.createElement("canvas");
  page.width = panels.length * (WIDE + GAP) + GAP;
  page.height = Math.max(...heights) + 2 * GAP + 8 * LINE;
  const pen = page.getContext("2d");
  pen.fillStyle = colour("--page");
  pen.fillRect(0, 0, page.width, page.height);
  panels.forEach((panel, i) => {
    pen.save();
    pen.translate(GAP + i * (WIDE + GAP), GAP);
    pen.beginPath();
    pen.rect(0, 0, WIDE, heights[i]);
    pen.save();
    pen.clip();
    panel.paint(pen, [WIDE, heights[i]], false);
    pen.restore();
    pen.translate(0, heights[i] + LINE);
    words(pen, panel, colour);
    pen.restore();
  });
  const blob = await new Promise((resolve) => page.toBlob(resolve, "image/png"));
  const link = document.createElement("a");
  link.download = `${app.image.name.replace(/\.\w+$/, "")}-${panels[0].view.method}.png`;
  link.href = URL.createObjectURL(blob);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function words(pen, panel, colour) {
  const { view, card } = panel;
  const { layered } = methodCard(card, view.method);
  const about = explainsClass(card, view.method) ? `for ${card.labels[panel.target]}` : "";
  const layer = Math.round(view.layer) < card.layers ? `layer ${Math.round(view.layer)}` : "pooling";
  const said = [card.name, [view.method, about].filter(Boolean).join(" "), layered && card.layers ? layer : "", view.method === "attention" && view.head ? `head ${Math.round(view.head) - 1}` : ""];
  pen.font = `20px ${FONT}`;
  pen.fillStyle = colour("--quiet");
  pen.fillText(said.filter(Boolean).join(" · "), 0, 0, WIDE);
  const now = panel.answered ?? panel.seen.probabilities;
  if (!now) return;
  likeliest(now).forEach((number, i) => {
    const top = (i + 1) * LINE + 8;
    pen.fillStyle = colour("--bar");
    pen.fillRect(WIDE / 2, top - 14, (WIDE / 2 - 90) * now[number], 14);
    pen.fillStyle = colour("--ink");
    pen.fillText(card.labels[number], 0, top, WIDE / 2 - 12);
    pen.textAlign = "right";
    pen.fillText(percent(now[number]), WIDE, top);
    pen.textAlign = "left";
  });
}
