// The learner's page: a block of figure 1, its formula, its code and its tensors for the sentence.
import { make } from "./explorer/dom.js";
import { colourOf, sharpen } from "./explorer/drawing.js";
import { by, fillTargets, post, told, words } from "./server.js";

const state = { chosen: "encoder-attention", answer: null, running: null };

async function run() {
  state.running?.abort();
  state.running = new AbortController();
  by("status").textContent = words.working;
  by("status").classList.remove("error");
  try {
    const asked = { text: by("text").value, model: by("model").value, to: by("to").value, layer: Number(by("layer").value) };
    state.answer = await post("/page/learn", asked, state.running.signal);
    by("status").textContent = [`${state.answer.text} → ${state.answer.translation}`, ...state.answer.notes].join("  ·  ");
    layers(state.answer.layers);
  } catch (error) {
    if (error.name === "AbortError") return;
    by("status").textContent = error.message;
    by("status").classList.add("error");
  }
  draw();
}

function layers(count) {
  const now = by("layer").value;
  by("layer").replaceChildren(...Array.from({ length: Math.max(1, count) }, (_, number) => new Option(String(number))));
  by("layer").value = Number(now) < count ? now : "0";
}

function draw() {
  for (const block of document.querySelectorAll("[data-block]")) block.setAttribute("aria-pressed", String(block.dataset.block === state.chosen));
  const idea = told.ideas[state.chosen];
  const own = state.answer?.blocks[state.chosen] ?? { code: [], tensors: [] };
  const formula = make("div", { class: "formula" });
  formula.innerHTML = idea.formula; // MathML of our own, from the server
  by("block").replaceChildren(
    make("h2", { text: idea.title }),
    make("p", { class: "small faint", text: `${words.section} ${idea.section}` }),
    make("p", { text: idea.about }), formula,
    make("h3", { text: words.tensors }),
    ...(own.tensors.length ? own.tensors.map(tensor) : [make("p", { class: "faint small", text: words.no_tensors })]),
    make("h3", { text: words.code }),
    ...own.code.map((code, number) => make("details", number === 0 ? { open: true } : {},
      make("summary", { class: "small", text: `${code.file}:${code.line}` }),
      make("pre", { tabindex: "0", role: "region", "aria-label": `${code.file}:${code.line}` }, make("code", { text: code.text })))));
}

/** Which part of a tensor its picture shows; nothing where that is all of it. */
function part(one, shown) {
  const all = one.shape.at(-1);
  if (shown === all) return [];
  const text = Array.isArray(one.columns) ? words.likely_columns : words.first_columns;
  return [make("p", { class: "part small faint", text: text.replace("{shown}", shown).replace("{all}", all) })];
}

/** A tensor as a picture: rows are tokens. Red is below zero, blue above, for what has both. */
function tensor(one) {
  const columns = Array.isArray(one.columns) ? one.columns.length : one.columns;
  const bytes = Uint8Array.from(atob(one.values), (letter) => letter.charCodeAt(0));
  const span = one.most - one.least;
  const value = (row, column) => one.least + (bytes[row * columns + column] / 255) * span;
  const canvas = make("canvas", { role: "img", "aria-label": `${one.name}: ${words.shape} ${one.shape.join(" × ")}` });
  const told = make("span", { class: "small faint", text: " " });
  const [wide, high] = [Math.max(3, Math.min(22, Math.floor(520 / columns))), Math.max(6, Math.min(16, Math.floor(320 / one.rows.length)))];
  const context = sharpen(canvas, columns * wide, one.rows.length * high);
  const most = Math.max(Math.abs(one.least), Math.abs(one.most), 1e-9);
  for (let row = 0; row < one.rows.length; row++)
    for (let column = 0; column < columns; column++) {
      const share = value(row, column) / most;
      context.fillStyle = one.least < 0 ? signed(share) : colourOf(share);
      context.fillRect(column * wide, row * high, wide, high);
    }
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const row = Math.min(one.rows.length - 1, Math.max(0, Math.floor((event.clientY - box.top) / high)));
    const column = Math.min(columns - 1, Math.max(0, Math.floor((event.clientX - box.left) / wide)));
    const name = Array.isArray(one.columns) ? one.columns[column] : column;
    told.textContent = `${one.rows[row]} · ${name}: ${value(row, column).toFixed(3)}`;
  });
  const labels = make("div", { class: "rows", "aria-hidden": "true" }, ...one.rows.map((name) => make("span", { text: name.replaceAll("▁", "·") })));
  labels.style.setProperty("--high", `${high}px`);
  return make("figure", { class: "tensor" },
    make("figcaption", {}, make("strong", { text: one.name }), make("span", { class: "small faint", text: `  ${words.shape} ${one.shape.join(" × ")}  ·  ${one.least} … ${one.most}, ø ${one.mean}, σ ${one.spread}` })),
    make("div", { class: "picture" }, labels, make("div", { class: "scroll" }, canvas)), ...part(one, columns), told);
}

function signed(share) {
  const dark = document.documentElement.dataset.theme === "dark";
  const [ground, end] = [dark ? [26, 29, 37] : [255, 255, 255], share < 0 ? (dark ? [255, 140, 120] : [178, 40, 30]) : dark ? [140, 170, 255] : [30, 66, 180]];
  const by = Math.min(1, Math.abs(share)) ** 0.7;
  return `rgb(${ground.map((value, i) => Math.round(value + (end[i] - value) * by)).join(",")})`;
}

const choose = (event) => {
  const block = event.target.closest("[data-block]");
  if (!block) return;
  state.chosen = block.dataset.block;
  draw();
};
const figure = document.querySelector(".diagram");
figure.addEventListener("click", choose);
figure.addEventListener("keydown", (event) => { if (["Enter", " "].includes(event.key)) { event.preventDefault(); choose(event); } });
by("ask").addEventListener("submit", (event) => { event.preventDefault(); run(); });
by("layer").addEventListener("change", run);
by("model").addEventListener("change", () => fillTargets(by("to"), by("model").value));
by("key")?.addEventListener("change", run);
addEventListener("themechange", draw);
const model = fillTargets(by("to"), by("model").value);
if (!by("text").value) by("text").value = model.example;
draw();
run();
