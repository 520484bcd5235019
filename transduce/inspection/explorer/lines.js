// Tokens in two columns with lines between them, as thick as one looks at the other (after tensor2tensor and bertviz).
import { lookText, make, say, shown } from "./dom.js";
import { sharpen } from "./drawing.js";

const MANY = 60; // tokens, above which lines are drawn only for the one that is looked at
const WIDTH = 260;

/** Rows on the left look at columns on the right. Hover or focus marks a token, a click pins it. */
export function linesView(grid, rowLabels, columnLabels) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const told = make("p", { class: "told small", "aria-live": "polite", text: say("pin") });
  const state = { hovered: null, pinned: null };
  const left = [], right = [];

  const marked = () => state.hovered ?? state.pinned;
  const update = () => { paint(); shade(); tell(); };
  const token = (side, place, label) => {
    const set = (value) => () => { state.hovered = value; update(); };
    return make("button", {
      type: "button", class: "token", text: shown(label), title: label, "aria-pressed": "false",
      on: {
        pointerenter: set([side, place]), pointerleave: set(null), focus: set([side, place]), blur: set(null),
        click: (event) => {
          const same = state.pinned?.[0] === side && state.pinned[1] === place;
          for (const one of [...left, ...right]) one.setAttribute("aria-pressed", "false");
          state.pinned = same ? null : [side, place];
          event.currentTarget.setAttribute("aria-pressed", String(!same));
          update();
        },
      },
    });
  };
  rowLabels.forEach((label, place) => left.push(token("row", place, label)));
  columnLabels.forEach((label, place) => right.push(token("column", place, label)));

  const middle = (button, top) => {
    const box = button.getBoundingClientRect();
    return box.top - top + box.height / 2;
  };
  function paint() {
    const box = canvas.parentElement?.getBoundingClientRect();
    if (!box?.height) return;
    const width = Math.min(WIDTH, Math.floor(box.width));
    const context = sharpen(canvas, width, Math.max(...[...left, ...right].map((one) => one.offsetTop + one.offsetHeight)));
    const [top, on] = [canvas.getBoundingClientRect().top, marked()];
    const style = getComputedStyle(document.documentElement);
    const from = left.map((one) => middle(one, top));
    const to = right.map((one) => middle(one, top));
    const draw = (row, column, strong) => {
      const weight = grid.at(row, column) / grid.peak;
      if (weight < 0.02) return;
      context.globalAlpha = strong ? 0.25 + 0.75 * weight : 0.08 + 0.8 * weight ** 1.3;
      context.lineWidth = 0.6 + 4.4 * weight;
      context.strokeStyle = style.getPropertyValue(strong ? "--warn" : "--accent");
      context.beginPath();
      context.moveTo(0, from[row]);
      context.bezierCurveTo(width * 0.4, from[row], width * 0.6, to[column], width, to[column]);
      context.stroke();
    };
    const few = Math.max(grid.rows, grid.columns) <= MANY;
    for (let row = 0; row < grid.rows; row++)
      for (let column = 0; column < grid.columns; column++) {
        const strong = on && on[1] === (on[0] === "row" ? row : column);
        if (strong || (!on && (few || grid.at(row, column) > 0.4 * grid.peak))) draw(row, column, Boolean(strong));
      }
    context.globalAlpha = 1;
  }
  const weightOf = (side, place) => {
    const on = marked();
    if (!on || on[0] === side) return on?.[0] === side && on[1] === place ? 1 : 0;
    return (on[0] === "row" ? grid.at(on[1], place) : grid.at(place, on[1])) / grid.peak;
  };
  function shade() {
    const on = marked();
    for (const [side, buttons] of [["row", left], ["column", right]])
      buttons.forEach((button, place) => {
        const weight = weightOf(side, place);
        const self = on && on[0] === side && on[1] === place;
        button.classList.toggle("marked", Boolean(self));
        button.style.setProperty("--weight", self ? 0 : weight);
      });
  }
  function tell() { told.textContent = lookText(grid, marked(), rowLabels, columnLabels); }
  const view = make("div", { class: "lines" },
    make("div", { class: "column" }, ...left), make("div", { class: "between" }, canvas), make("div", { class: "column" }, ...right));
  new ResizeObserver(() => paint()).observe(view);
  return make("div", {}, told, make("div", { class: "scroll tall", tabindex: "-1" }, view));
}
