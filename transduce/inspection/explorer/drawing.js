// Weights as colours on canvases: a small picture of a head, and the matrix one can walk through.
import { make, percent, say, shown } from "./dom.js";

const isDark = () => document.documentElement.dataset.theme === "dark";
const STOPS = {
  light: [[255, 255, 255], [201, 216, 250], [108, 141, 232], [38, 70, 178], [16, 28, 92]],
  dark: [[26, 29, 37], [43, 57, 105], [72, 103, 205], [141, 171, 255], [232, 239, 255]],
};

/** A weight from 0 to 1 as a colour; small weights are lifted so that they can be seen. */
function mixOf(weight) {
  const stops = STOPS[isDark() ? "dark" : "light"];
  const place = Math.min(1, Math.max(0, weight)) ** 0.62 * (stops.length - 1);
  const below = Math.min(stops.length - 2, Math.floor(place));
  return stops[below].map((value, i) => Math.round(value + (stops[below + 1][i] - value) * (place - below)));
}

export const colourOf = (weight) => `rgb(${mixOf(weight).join(",")})`;

/** Black or white, whichever is read more easily on the colour of a weight (luminance as in WCAG). */
export function inkOn(weight) {
  const [red, green, blue] = mixOf(weight).map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.19 ? "#0b0d12" : "#ffffff";
}

/** A canvas sharp on any screen, and its context in CSS pixels. */
export function sharpen(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** A small picture of a grid: of cells that share a pixel the greatest is shown. */
export function drawThumbnail(canvas, grid, size) {
  const context = sharpen(canvas, size, size);
  const rows = Math.min(grid.rows, size);
  const columns = Math.min(grid.columns, size);
  for (let y = 0; y < rows; y++) {
    for (let x = 0; x < columns; x++) {
      let most = 0;
      const toRow = Math.ceil(((y + 1) * grid.rows) / rows);
      const toColumn = Math.ceil(((x + 1) * grid.columns) / columns);
      for (let row = Math.floor((y * grid.rows) / rows); row < toRow; row++)
        for (let column = Math.floor((x * grid.columns) / columns); column < toColumn; column++) most = Math.max(most, grid.at(row, column));
      context.fillStyle = colourOf(most / grid.peak);
      context.fillRect((x * size) / columns, (y * size) / rows, size / columns + 0.5, size / rows + 0.5);
    }
  }
}

/** A matrix with its labels; hover or arrow keys name a cell, a click pins its row. */
export function matrixView(grid, rowLabels, columnLabels, memory) {
  const longest = Math.max(grid.rows, grid.columns);
  memory.cell ??= Math.max(6, Math.min(30, Math.floor(560 / longest)));
  const canvas = make("canvas", { tabindex: "0", role: "img" });
  const spoken = make("p", { class: "told small", "aria-live": "polite", text: say("pin") });
  const slider = make("input", { type: "range", min: "3", max: "36", value: String(memory.cell), "aria-label": say("zoom") });
  let [at, pinned] = [null, null];

  const margin = () => (memory.cell >= 10 ? 96 : 10);
  const style = getComputedStyle(document.documentElement);
  const ground = document.createElement("canvas"); // cells and names, drawn once a size; marks go on top
  const lay = () => {
    const cell = memory.cell;
    const edge = margin();
    const context = sharpen(ground, edge + grid.columns * cell + 8, edge + grid.rows * cell + 8);
    for (let row = 0; row < grid.rows; row++)
      for (let column = 0; column < grid.columns; column++) {
        context.fillStyle = colourOf(grid.at(row, column) / grid.peak);
        context.fillRect(edge + column * cell, edge + row * cell, cell - (cell > 8 ? 1 : 0), cell - (cell > 8 ? 1 : 0));
      }
    name(context, null);
    sharpen(canvas, edge + grid.columns * cell + 8, edge + grid.rows * cell + 8);
  };
  /** Names of rows and columns: all of them, or again those of a cell that is marked. */
  const name = (context, marked) => {
    const cell = memory.cell;
    const edge = margin();
    if (cell >= 10) {
      context.font = `${Math.min(13, cell - 1)}px ${style.getPropertyValue("--sans")}`;
      context.textBaseline = "middle";
      const label = (text, on) => {
        if (marked && !on) return;
        context.fillStyle = style.getPropertyValue(on ? "--accent" : "--soft");
        context.fillText(fit(context, shown(text), edge - 10), 0, 0);
      };
      for (let row = 0; row < grid.rows; row++) {
        context.save();
        context.textAlign = "right";
        context.translate(edge - 6, edge + (row + 0.5) * cell);
        label(rowLabels[row], marked?.[0] === row);
        context.restore();
      }
      for (let column = 0; column < grid.columns; column++) {
        context.save();
        context.translate(edge + (column + 0.5) * cell, edge - 6);
        context.rotate(-Math.PI / 3);
        label(columnLabels[column], marked?.[1] === column);
        context.restore();
      }
    }
  };
  const paint = () => {
    const context = canvas.getContext("2d");
    const [cell, edge, marked] = [memory.cell, margin(), pinned ?? at];
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(ground, 0, 0);
    context.restore();
    if (marked) {
      name(context, marked);
      context.strokeStyle = style.getPropertyValue("--warn");
      context.lineWidth = 1.5;
      context.strokeRect(edge - 1, edge + marked[0] * cell - 1, grid.columns * cell + 1, cell + 1);
      context.strokeRect(edge + marked[1] * cell - 1, edge - 1, cell + 1, grid.rows * cell + 1);
    }
  };
  const tell = () => {
    const marked = pinned ?? at;
    if (!marked) return;
    const [row, column] = marked;
    const others = grid.best(row, 4).map(([place, weight]) => `${shown(columnLabels[place])} ${percent(weight)}`);
    spoken.textContent = `${shown(rowLabels[row])} → ${shown(columnLabels[column])}: ${percent(grid.at(row, column))}  (${others.join(", ")})`;
  };
  const move = (row, column) => {
    at = [Math.max(0, Math.min(grid.rows - 1, row)), Math.max(0, Math.min(grid.columns - 1, column))];
    paint();
    tell();
  };
  const placeOf = (event) => {
    const box = canvas.getBoundingClientRect();
    const edge = margin();
    return [Math.floor((event.clientY - box.top - edge) / memory.cell), Math.floor((event.clientX - box.left - edge) / memory.cell)];
  };
  canvas.addEventListener("pointermove", (event) => {
    const [row, column] = placeOf(event);
    if (!pinned && row >= 0 && column >= 0 && row < grid.rows && column < grid.columns) move(row, column);
  });
  canvas.addEventListener("click", (event) => {
    const [row, column] = placeOf(event);
    if (row < 0 || column < 0 || row >= grid.rows || column >= grid.columns) return;
    pinned = pinned && pinned[0] === row && pinned[1] === column ? null : [row, column];
    move(row, column);
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    const [row, column] = pinned ?? at ?? [-by[0] || 0, -by[1] || 0];
    pinned = null;
    move(row + by[0], column + by[1]);
  });
  slider.addEventListener("input", () => { memory.cell = Number(slider.value); lay(); paint(); });
  canvas.setAttribute("aria-label", `${say("matrix")}: ${grid.rows} × ${grid.columns}`);
  lay();
  paint();
  const zoom = make("label", { class: "zoom small faint" }, `${say("zoom")} `, slider);
  return make("div", { class: "matrix" }, make("div", { class: "tools" }, zoom, make("span", { class: "small faint", text: `${say("strongest")}: ${percent(grid.peak)}` })), make("div", { class: "scroll", tabindex: "-1" }, canvas), spoken);
}

function fit(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let kept = text;
  while (kept.length > 1 && context.measureText(`${kept}…`).width > width) kept = kept.slice(0, -1);
  return `${kept}…`;
}
