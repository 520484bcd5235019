// Attention over what was read: a recording's spectrogram or a picture in grey, coloured where the chosen token looks.
import { bytesOf } from "./data.js";
import { lookText, make, say, shown } from "./dom.js";
import { sharpen } from "./drawing.js";

const [BROAD, LOW, TALL] = [640, 120, 360]; // CSS pixels that a sight fills; one that is wide and lower than LOW is stretched
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Tokens above, what they look at below. Hover or focus marks a token or a place, a click pins it, arrow keys walk. */
export function sightView(grid, rowLabels, columnLabels, sight) {
  const scale = Math.max(1, Math.min(12, BROAD / sight.width, TALL / sight.height));
  const across = scale;
  const down = sight.width > 2 * sight.height ? Math.max(scale, LOW / sight.height) : scale;
  const canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": `${say("sight")}: ${sight.width} × ${sight.height}` });
  const told = make("p", { class: "told small", "aria-live": "polite", text: say("pin") });
  const state = { hovered: null, pinned: null };
  const ground = grey(sight);

  const marked = () => state.hovered ?? state.pinned;
  const update = () => { paint(); shade(); tell(); };
  const hover = (value) => { state.hovered = value; update(); };
  const pin = (value) => {
    state.pinned = same(state.pinned, value) ? null : value;
    tokens.forEach((one, place) => one.setAttribute("aria-pressed", String(same(state.pinned, ["row", place]))));
    update();
  };
  const tokens = rowLabels.map((label, place) => make("button", {
    type: "button", class: "token", text: shown(label), title: label, "aria-pressed": "false",
    on: {
      pointerenter: () => hover(["row", place]), pointerleave: () => hover(null), focus: () => hover(["row", place]), blur: () => hover(null),
      click: () => pin(["row", place]),
      keydown: (event) => tokens[place + (STEPS[event.key]?.[0] || NaN)]?.focus(),
    },
  }));

  function paint() {
    const context = sharpen(canvas, Math.round(sight.width * across), Math.round(sight.height * down));
    const style = getComputedStyle(document.documentElement);
    const on = marked();
    context.imageSmoothingEnabled = false;
    context.drawImage(ground, 0, 0, sight.width * across, sight.height * down);
    if (!on) return;
    const box = ([left, top, width, height]) => [left * across, top * down, width * across, height * down];
    if (on[0] === "row") {
      const weights = sight.boxes.map((_, place) => grid.at(on[1], place));
      const most = Math.max(...weights, 1e-6);
      context.fillStyle = style.getPropertyValue("--warn");
      weights.forEach((weight, place) => { context.globalAlpha = (0.75 * weight) / most; context.fillRect(...box(sight.boxes[place])); });
      context.globalAlpha = 1;
      return;
    }
    context.strokeStyle = style.getPropertyValue("--warn");
    context.lineWidth = 2;
    context.strokeRect(...box(sight.boxes[on[1]]));
  }
  function shade() {
    const on = marked();
    tokens.forEach((one, place) => {
      one.classList.toggle("marked", same(on, ["row", place]));
      one.style.setProperty("--weight", on?.[0] === "column" ? grid.at(place, on[1]) / grid.peak : 0);
    });
  }
  function tell() { told.textContent = lookText(grid, marked(), rowLabels, columnLabels); }
  const placeOf = (event) => {
    const frame = canvas.getBoundingClientRect();
    const [x, y] = [(event.clientX - frame.left) / across, (event.clientY - frame.top) / down];
    const found = sight.boxes.findIndex(([left, top, width, height]) => x >= left && x < left + width && y >= top && y < top + height);
    return found < 0 ? null : ["column", found];
  };
  canvas.addEventListener("pointermove", (event) => hover(placeOf(event)));
  canvas.addEventListener("pointerleave", () => hover(null));
  canvas.addEventListener("click", (event) => { const place = placeOf(event); if (place) pin(place); });
  canvas.addEventListener("blur", () => hover(null));
  canvas.addEventListener("keydown", (event) => {
    const now = marked()?.[0] === "column" ? marked()[1] : null;
    if (STEPS[event.key]) hover(["column", now === null ? 0 : beside(sight.boxes, now, STEPS[event.key])]);
    else if (event.key === "Enter" && now !== null) pin(["column", now]);
    else return;
    event.preventDefault();
  });
  paint();
  return make("div", { class: "sight" }, told, make("div", { class: "words", role: "group", "aria-label": say("translation") }, ...tokens),
    make("div", { class: "scroll", tabindex: "-1" }, canvas));
}

const same = (one, other) => one?.[0] === other?.[0] && one?.[1] === other?.[1];

/** The values, a pixel each, black for 0 and white for 1. */
function grey(sight) {
  const canvas = make("canvas", { width: sight.width, height: sight.height });
  const pixels = new ImageData(sight.width, sight.height);
  bytesOf(sight.values).forEach((value, place) => pixels.data.set([value, value, value, 255], 4 * place));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

/** The number of the nearest box in a direction; the same where there is none. */
function beside(boxes, now, [right, below]) {
  const middle = ([left, top, width, height]) => [left + width / 2, top + height / 2];
  const [x, y] = middle(boxes[now]);
  const far = boxes.map((box) => {
    const [dx, dy] = [middle(box)[0] - x, middle(box)[1] - y];
    return dx * right + dy * below > 0 ? Math.hypot(dx, dy) : Infinity;
  });
  const least = Math.min(...far);
  return least === Infinity ? now : far.indexOf(least);
}
