// The explorer: one or two inspections, a tab for each way of looking, and the head that is looked at.
import { Inspection, matrixGrid } from "./data.js";
import { chooser, fixed, make, say, shown } from "./dom.js";
import { drawThumbnail, matrixView } from "./drawing.js";
import { linesView } from "./lines.js";
import { sightView } from "./sight.js";
import { headsView, lensView, stepsView } from "./tables.js";
import { treeView } from "./tree.js";

const TABS = ["attention", "words", "beam", "steps", "lens", "heads"];

/** Shows inspections (as JSON) in a host element. `ask(number, tokens)`, where there is a server, looks at another beginning. */
export class Explorer {
  constructor(host, inspections, { ask = null } = {}) {
    this.host = host;
    this.ask = ask;
    this.state = { tab: "attention", view: "sight", part: "cross", layer: 0, head: -1, shown: [0] };
    this.memory = {};
    this.show(inspections);
  }

  show(inspections, side = false) {
    this.inspections = inspections.map((one) => (one instanceof Inspection ? one : new Inspection(one)));
    const [first] = this.inspections;
    this.memory = {};
    if (!first.parts.includes(this.state.part)) this.state.part = first.parts.at(-1) ?? "cross";
    this.state.layer = Math.min(this.state.layer, Math.max(0, first.of(this.state.part).length - 1));
    this.state.shown = this.inspections.length > 1 && (side || this.state.shown.length > 1) ? [0, 1] : [0];
    this.draw();
  }

  set(change) { Object.assign(this.state, change); this.draw(); }

  draw() {
    const { state } = this;
    const tabs = TABS.map((tab) => make("button", {
      type: "button", role: "tab", id: `tab-${tab}`, text: say(tab), "aria-selected": String(tab === state.tab), tabindex: tab === state.tab ? "0" : "-1",
      "aria-controls": "panel", on: { click: () => this.set({ tab }), keydown: (event) => this.walk(event) },
    }));
    const panes = state.shown.map((number) => this.pane(number));
    const focused = document.activeElement?.id;
    this.host.replaceChildren(
      make("div", { class: "explorer-bar" }, make("div", { class: "choice", role: "tablist", "aria-label": say("attention") }, ...tabs), this.picker()),
      make("div", { class: `panes ${panes.length > 1 ? "two" : ""}`, id: "panel", role: "tabpanel", "aria-labelledby": `tab-${state.tab}` }, ...panes));
    if (focused?.startsWith("tab-")) document.getElementById(`tab-${state.tab}`)?.focus();
  }

  walk(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) this.set({ tab: TABS[(TABS.indexOf(this.state.tab) + by + TABS.length) % TABS.length] });
  }

  /** Which inspections are shown, where there are several. */
  picker() {
    if (this.inspections.length < 2) return null;
    const { shown: now } = this.state;
    const several = new Set(this.inspections.map((one) => one.model)).size > 1;
    const entries = this.inspections.map((one, number) => [number, `${number + 1}. ${one.translation}${several ? ` (${one.model})` : ""}`.slice(0, 48)]);
    const pick = (side) => {
      const select = make("select", { class: "select", "aria-label": say(side ? "right" : "left"), on: { change: (event) => {
        const chosen = [...now];
        chosen[side] = Number(event.target.value);
        this.set({ shown: chosen });
      } } }, ...entries.map(([number, text]) => make("option", { value: number, text })));
      select.value = String(now[side]);
      return select;
    };
    const two = now.length > 1;
    const toggle = chooser(say("which"), [[false, say("one")], [true, say("compare")]], two, (side) => this.set({ shown: side ? [now[0], now[0] === 1 ? 0 : 1] : [now[0]] }));
    return make("div", { class: "tools" }, toggle, pick(0), two ? pick(1) : null);
  }

  pane(number) {
    const inspection = this.inspections[number];
    const memory = (this.memory[number] ??= { matrix: {}, words: {}, heads: {}, tree: {} });
    const ask = this.ask ? (tokens) => this.ask(number, tokens) : null;
    const views = {
      attention: () => this.attention(inspection, memory),
      words: () => this.words(inspection, memory),
      beam: () => treeView(inspection, memory.tree, ask),
      steps: () => stepsView(inspection, ask),
      lens: () => (inspection.lens.length ? lensView(inspection) : make("p", { class: "faint", text: say("noSteps") })),
      heads: () => !inspection.heads.length ? make("p", { class: "faint", text: say("noSteps") }) : headsView(inspection, memory.heads, (head) => this.set({ tab: "attention", part: head.part, layer: head.layer, head: head.head })),
    };
    return make("section", { class: "pane card", "aria-label": inspection.translation }, this.summary(inspection), views[this.state.tab]());
  }

  summary(inspection) {
    const forced = inspection.forced ? `  ·  ${say("forced")}: ${inspection.written.slice(0, inspection.forced).map(shown).join(" ")}` : "";
    const facts = [inspection.model, `${say("search")} ${inspection.search}`, `${say("score")} ${fixed(inspection.score)}`, `${say("logprob")} ${fixed(inspection.log_prob)}`];
    if (!inspection.finished) facts.push(say("unfinished"));
    return make("header", { class: "summary" },
      make("p", { class: "from", text: inspection.text }), make("p", { class: "into", text: inspection.translation }),
      make("p", { class: "small faint", text: facts.filter(Boolean).join("  ·  ") + forced }),
      ...inspection.notes.map((note) => make("p", { class: "small note", text: note })));
  }

  attention(inspection, memory) {
    const { part, layer, head, view } = this.state;
    const parts = inspection.parts.map((one) => [one, say(one)]);
    if (!inspection.parts.includes(part)) return make("div", {}, chooser(say("part"), parts, part, (value) => this.set({ part: value })), make("p", { class: "faint", text: say("none") }));
    const grid = inspection.grid(part, layer, head);
    const labels = [inspection.rowLabels(part), inspection.columnLabels(part)];
    const over = part === "cross" && inspection.sight; // a recording or picture, which only the decoder looks at as such
    const views = [...(over ? ["sight"] : []), "lines", "matrix"];
    const shownAs = views.includes(view) ? view : "lines";
    const detail = shownAs === "sight" ? sightView(grid, ...labels, over) : shownAs === "lines" ? linesView(grid, ...labels) : matrixView(grid, ...labels, (memory.matrix[part] ??= {}));
    const title = layer < 0 ? say("mean") : `${say("layer")} ${layer} · ${head < 0 ? say("mean") : `${say("head")} ${head}`}`;
    return make("div", {},
      make("div", { class: "tools" }, chooser(say("part"), parts, part, (value) => this.set({ part: value, layer: 0, head: -1 })), make("span", { class: "small faint", text: say(over ? "part.sight" : `part.${part}`) })),
      make("div", { class: "split" }, this.overview(inspection, part),
        make("div", { class: "detail" }, make("div", { class: "tools" }, make("h2", { text: title }), chooser(say("view"), views.map((one) => [one, say(one)]), shownAs, (value) => this.set({ view: value }))), detail)));
  }

  /** Every layer a row, every head a small picture; drawn when they come into sight. */
  overview(inspection, part) {
    const { layer, head } = this.state;
    const maps = inspection.of(part);
    const size = 56;
    const watch = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) { entry.target.draw(); watch.unobserve(entry.target); }
    });
    const picture = (number, one) => {
      const canvas = make("canvas", { width: size, height: size, "aria-hidden": "true" });
      canvas.draw = () => drawThumbnail(canvas, inspection.grid(part, number, one), size);
      watch.observe(canvas);
      const name = `${say("layer")} ${number}, ${one < 0 ? say("mean") : `${say("head")} ${one}`}`;
      return make("button", { type: "button", class: "thumb", title: name, "aria-label": name, "aria-pressed": String(number === layer && one === head), on: { click: () => this.set({ layer: number, head: one }) } }, canvas);
    };
    const rows = maps.map((map, number) => make("div", { class: "thumbs" }, make("span", { class: "small faint rowname", text: `${number}` }),
      picture(number, -1), ...Array.from({ length: map.heads > 1 ? map.heads : 0 }, (_, one) => picture(number, one))));
    const count = Math.max(...maps.map((map) => (map.heads > 1 ? map.heads : 0)));
    const names = make("div", { class: "thumbs small faint", "aria-hidden": "true" }, make("span", { class: "rowname" }), make("span", { class: "colname", text: "Ø" }),
      ...Array.from({ length: count }, (_, one) => make("span", { class: "colname", text: String(one) })));
    return make("div", { class: "overview", role: "group", "aria-label": say("overview") }, make("div", { class: "scroll", tabindex: "-1" }, names, ...rows));
  }

  words(inspection, memory) {
    const { alignment } = inspection;
    if (!alignment?.weights.length) return make("p", { class: "faint", text: say("none") });
    const grid = matrixGrid(alignment.weights);
    const now = this.state.view === "matrix" ? "matrix" : "lines";
    const view = now === "lines" ? linesView(grid, alignment.target, alignment.source) : matrixView(grid, alignment.target, alignment.source, memory.words);
    return make("div", {}, make("div", { class: "tools" }, make("span", { class: "small faint", text: say("wordsHelp") }),
      chooser(say("view"), [["lines", say("lines")], ["matrix", say("matrix")]], now, (value) => this.set({ view: value }))), view);
  }
}
