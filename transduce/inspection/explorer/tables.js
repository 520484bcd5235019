// Step by step, the logit lens, and what each head does.
import { colourOf, inkOn } from "./drawing.js";
import { chooser, fixed, make, percent, say, shown } from "./dom.js";

const LEAST = Math.log(0.0005); // of a candidate that is shown besides the best three
const heading = (text, extra = {}) => make("th", { scope: "col", ...extra }, text);

/** What the decoder read, wrote and could have said. `ask(prefix tokens)` looks at another beginning, if there is a server. */
export function stepsView(inspection, ask) {
  const body = make("tbody");
  inspection.steps.forEach((step, place) => body.append(...stepRows(inspection, step, place, ask)));
  const head = make("tr", {}, heading("#"), heading(say("read")), heading(say("wrote")), heading(say("probability")), heading(say("entropy")),
    heading(say("saw")), heading(say("candidates")));
  const table = make("table", { class: "steps" }, make("thead", {}, head), body);
  return make("div", {}, make("p", { class: "small faint", text: say("stepsHelp") }), make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": say("steps") }, table));
}

function stepRows(inspection, step, place, ask) {
  const probability = Math.exp(step.log_prob ?? -100);
  const seen = inspection.crossing ? inspection.crossing.best(place, 3) : [];
  const answer = make("tr", { class: "answer", hidden: true }, make("td", { colspan: "7" }));
  const worth = step.candidates.filter((candidate, rank) => rank < 3 || candidate.log_prob > LEAST || candidate.token === step.token);
  const chips = worth.map((candidate) => {
    const own = candidate.token === step.token;
    const chip = make("button", {
      type: "button", class: own ? "chip own" : "chip", title: `${say("whatIf")} ${candidate.piece} (log p ${fixed(candidate.log_prob, 3)})`, disabled: own,
      on: { click: () => whatIf(inspection, place, candidate, answer, ask) },
    }, make("span", { class: "fill" }), make("span", { text: shown(candidate.piece) }), make("small", { text: percent(Math.exp(candidate.log_prob)) }));
    chip.style.setProperty("--share", Math.exp(candidate.log_prob));
    return chip;
  });
  const meter = make("span", { class: "meter" }, make("span"));
  meter.firstChild.style.width = `${Math.max(1, probability * 100)}%`;
  const row = make("tr", { class: place < inspection.forced ? "forced" : "" },
    make("td", { class: "number", text: String(place + 1) }),
    make("td", { text: shown(step.read) }),
    make("td", {}, make("strong", { text: shown(step.written) })),
    make("td", { class: "nowrap" }, meter, ` ${percent(probability)}`),
    make("td", { class: "number", text: step.entropy === null ? "–" : `${fixed(step.entropy, 1)} bit` }),
    make("td", { class: "faint small", text: seen.map(([column, weight]) => `${shown(inspection.source[column])} ${percent(weight)}`).join(", ") }),
    make("td", {}, make("div", { class: "chips" }, ...(chips.length ? chips : [make("span", { class: "faint small", text: say("noSteps") })]))));
  return [row, answer];
}

function whatIf(inspection, place, candidate, answer, ask) {
  if (ask) { ask([...inspection.tokens.slice(0, place), candidate.token]); return; }
  const branch = inspection.branches.find((one) => one.step === place && one.token === candidate.token);
  answer.hidden = false;
  const [cell] = answer.children;
  cell.replaceChildren(
    make("span", { class: "faint", text: `${say("whatIf")} “${shown(candidate.piece)}”: ` }),
    make("strong", { text: branch ? branch.text : say("nothingElse") }),
    make("span", { class: "faint small", text: branch ? `  (${say("logprob")} ${fixed(branch.total)})` : "" }));
}

/** What each layer would say at each place; the last layer on top. */
export function lensView(inspection) {
  const layers = [...inspection.lens].reverse();
  const head = make("tr", {}, heading(say("layer")), ...inspection.written.map((piece) => heading(shown(piece), { class: "piece" })));
  const rows = layers.map((glimpse) =>
    make("tr", {}, make("th", { scope: "row", text: String(glimpse.layer) }), ...glimpse.places.map((best, place) => {
      const [first] = best;
      const weight = Math.exp(first.log_prob);
      const cell = make("td", {
        class: glimpse.ranks[place] === 0 ? "lens same" : "lens", text: shown(first.piece),
        title: `${best.map((one) => `${one.piece} ${percent(Math.exp(one.log_prob))}`).join("\n")}\n${say("wrote")}: ${inspection.written[place]}, ${say("rank")} ${glimpse.ranks[place] + 1}`,
      });
      Object.assign(cell.style, { background: colourOf(weight * 0.6), color: inkOn(weight * 0.6) });
      return cell;
    })));
  return make("div", {}, make("p", { class: "small faint", text: say("lensHelp") }),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": say("lens") }, make("table", { class: "lenses" }, make("thead", {}, head), make("tbody", {}, ...rows))));
}

const COLUMNS = ["part", "layer", "head", "entropy", "confidence", "distance", "diagonal", "previous", "following", "ends", "role"];

/** A sortable table of heads; `choose(head)` shows one. `memory` keeps the order between drawings. */
export function headsView(inspection, memory, choose) {
  memory.by ??= "part";
  memory.part ??= "all";
  const host = make("div");
  const draw = () => {
    const order = { encoder: 0, decoder: 1, cross: 2 };
    const key = (one) => (memory.by === "part" ? order[one.part] * 1e4 + one.layer * 100 + one.head : one[memory.by]);
    const chosen = inspection.heads.filter((one) => memory.part === "all" || one.part === memory.part);
    chosen.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (memory.down ? -1 : 1));
    const head = make("tr", {}, ...COLUMNS.map((name) =>
      heading(make("button", { type: "button", class: "sort", text: say(name) + (memory.by === name ? (memory.down ? " ↓" : " ↑") : ""), on: { click: () => sort(name) } }),
        { "aria-sort": memory.by === name ? (memory.down ? "descending" : "ascending") : "none" })));
    const rows = chosen.map((one) => make("tr", { class: "pick", on: { click: () => choose(one) } },
      make("td", {}, make("button", { type: "button", class: "link", text: say(one.part), "aria-label": `${say(one.part)} ${say("layer")} ${one.layer} ${say("head")} ${one.head}` })),
      make("td", { class: "number", text: String(one.layer) }), make("td", { class: "number", text: String(one.head) }),
      make("td", { class: "number", text: fixed(one.entropy) }), ...["confidence"].map((name) => shareCell(one[name])),
      make("td", { class: "number", text: fixed(one.distance, 1) }), ...["diagonal", "previous", "following", "ends"].map((name) => shareCell(one[name])),
      make("td", { text: say(one.role) })));
    const parts = [["all", say("all")], ...inspection.parts.map((part) => [part, say(part)])];
    host.replaceChildren(
      make("div", { class: "tools" }, chooser(say("part"), parts, memory.part, (part) => { memory.part = part; draw(); }), make("span", { class: "small faint", text: say("headsHelp") })),
      make("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": say("heads") }, make("table", { class: "headtable" }, make("thead", {}, head), make("tbody", {}, ...rows))));
  };
  const sort = (name) => {
    memory.down = memory.by === name ? !memory.down : !["part", "layer", "head", "role"].includes(name);
    memory.by = name;
    draw();
  };
  draw();
  return host;
}

function shareCell(value) {
  const cell = make("td", { class: "number share", text: percent(value) });
  cell.style.setProperty("--share", value);
  return cell;
}
