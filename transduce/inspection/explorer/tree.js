// The beam's tree: a column a step, the likeliest continuations on top, what was chosen marked, what was pruned faint.
import { fixed, make, percent, say, shown } from "./dom.js";

const [WIDE, HIGH, BOX] = [136, 34, 114];

/** `ask(prefix tokens)` goes on from a node, if there is a server. */
export function treeView(inspection, memory, ask) {
  const { tree } = inspection;
  if (!tree) return make("p", { class: "faint", text: say("noTree") });
  memory.pruned ??= true;
  const host = make("div");
  const draw = () => host.replaceChildren(legend(memory, draw, ask), picture(inspection, tree, memory.pruned, ask));
  draw();
  return host;
}

function legend(memory, draw, ask) {
  const box = make("input", { type: "checkbox", on: { change: (event) => { memory.pruned = event.target.checked; draw(); } } });
  box.checked = memory.pruned;
  const marks = ["best", "kept", "finished", "pruned", "open"].map((fate) => make("span", { class: `mark ${fate}`, text: say(fate) }));
  return make("div", { class: "tools" }, make("label", { class: "small" }, box, ` ${say("showPruned")}`), ...marks,
    make("span", { class: "small faint", text: say(ask ? "beamHelp" : "beamHelpFile") }));
}

function picture(inspection, tree, pruned, ask) {
  const best = new Set(tree.best);
  const columns = [];
  tree.nodes.forEach((node, number) => {
    if (pruned || node.fate === "kept" || node.fate === "finished" || best.has(number)) (columns[node.step] ??= []).push(number);
  });
  const place = new Map([[-1, { x: 8, y: 24 }]]);
  columns.forEach((numbers, step) => {
    numbers.sort((a, b) => best.has(b) - best.has(a) || tree.nodes[b].total - tree.nodes[a].total);
    numbers.forEach((number, row) => place.set(number, { x: 70 + step * WIDE, y: 24 + row * HIGH }));
  });
  const width = 80 + columns.length * WIDE;
  const height = 40 + Math.max(1, ...columns.map((numbers) => numbers.length)) * HIGH;
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": say("beam") });
  const told = make("p", { class: "told small", "aria-live": "polite", text: " " });
  const [links, groups] = [new Map(), new Map()];
  const path = (number) => { const found = []; for (let n = number; n >= 0; n = tree.nodes[n].parent) found.unshift(n); return found; };
  const mark = (number) => {
    const chosen = new Set(number === null ? [] : path(number));
    for (const [n, link] of links) link.classList.toggle("on", chosen.has(n));
    for (const [n, group] of groups) group.classList.toggle("on", chosen.has(n));
    if (number === null) return;
    const node = tree.nodes[number];
    const words = path(number).map((n) => tree.nodes[n].piece).join("").replaceAll("▁", " ").trim();
    told.textContent = `${words}  ·  ${shown(node.piece)} ${percent(Math.exp(node.log_prob))}  ·  ${say("total")} ${fixed(node.total)}`
      + (node.score === null ? "" : `  ·  ${say("score")} ${fixed(node.score)}`) + `  ·  ${say(node.fate)}`;
  };
  svg.append(make("text", { x: 8, y: 28, class: "root" }, inspection.read[0] ?? ""));
  for (const numbers of columns) for (const number of numbers ?? []) {
    const node = tree.nodes[number];
    const [from, to] = [place.get(node.parent), place.get(number)];
    if (!from) continue;
    const x = node.parent < 0 ? from.x + 40 : from.x + BOX;
    const middle = (x + to.x) / 2;
    const link = make("path", { d: `M${x},${from.y}C${middle},${from.y} ${middle},${to.y} ${to.x},${to.y}`, class: `link ${node.fate}${best.has(number) ? " best" : ""}` });
    links.set(number, link);
    svg.append(link);
  }
  for (const numbers of columns) for (const number of numbers ?? []) {
    const node = tree.nodes[number];
    const { x, y } = place.get(number);
    const goOn = () => ask?.(path(number).map((n) => tree.nodes[n].token));
    const group = make("g", {
      class: `node ${node.fate}${best.has(number) ? " best" : ""}`, tabindex: best.has(number) || ask ? "0" : "-1", role: ask ? "button" : "img",
      "aria-label": `${clip(shown(node.piece), 9)} ${percent(Math.exp(node.log_prob))}, ${say(node.fate)}`,
      on: {
        pointerenter: () => mark(number), pointerleave: () => mark(null), focus: () => mark(number), click: goOn,
        keydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); goOn(); } },
      },
    }, make("rect", { x, y: y - 13, width: BOX, height: 26, rx: 7 }),
    make("text", {}, make("tspan", { x: x + 8, y: y + 5 }, clip(shown(node.piece), 9)), " ",
      make("tspan", { x: x + BOX - 7, y: y + 4, class: "share" }, percent(Math.exp(node.log_prob)))));
    groups.set(number, group);
    svg.append(group);
  }
  return make("div", {}, make("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": say("beam") }, svg), told);
}

/** As much of a text as `length` letters take, where those of East Asia are twice as wide. */
function clip(text, length) {
  let room = length;
  let kept = "";
  for (const letter of text) {
    room -= letter > "\u2e7f" ? 2 : 1;
    if (room < 0) return `${kept.slice(0, -1)}…`;
    kept += letter;
  }
  return kept;
}
