// The explorer fed by a server: a form, one or several looks, and "what if it had said this instead".
import { setLanguage } from "./explorer/dom.js";
import { Explorer } from "./explorer/explorer.js";
import { by, fillTargets, post, told, words } from "./server.js";

setLanguage(told.language);
let explorer = null;
let asked = [];
let running = null;

const look = (ask) => post("/page/inspect", ask, running.signal);

async function show(asks, side) {
  running?.abort();
  running = new AbortController();
  by("status").textContent = words.working;
  by("status").classList.remove("error");
  try {
    const found = [];
    for (const ask of asks) found.push(await look(ask));
    asked = asks;
    by("status").textContent = "";
    if (explorer) explorer.show(found, side);
    else explorer = new Explorer(by("explorer"), found, { ask: whatIf });
    if (side && explorer.state.shown.length < 2 && found.length > 1) explorer.set({ shown: [0, 1] });
  } catch (error) {
    if (error.name === "AbortError") return;
    by("status").textContent = error.message;
    by("status").classList.add("error");
  }
}

/** What was there on the left, what would have followed on the right. */
const whatIf = (number, tokens) => show([asked[number], { ...asked[number], prefix: tokens }], true);

/** The language that is asked for, if the model can be told it; a model of one language alone has no tag for it. */
function tagFor(name, to) {
  const [first, own] = [by("model").value, name].map((one) => told.models.find((model) => model.name === one));
  const wanted = to || first.to[0]?.[0];
  return own.tagged.includes(wanted) ? wanted : "";
}

by("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const [text, another, model, second, to] = ["text", "another", "model", "second", "to"].map((id) => by(id).value.trim());
  const beam = Number(by("beam").value);
  const asks = [text, another].filter(Boolean).flatMap((one) => [model, second].filter(Boolean).map((name) => ({ text: one, model: name, to: tagFor(name, to), beam })));
  history.replaceState(null, "", `?${new URLSearchParams({ lang: told.language, text, model, to })}`); // to be sent to others
  show(asks, asks.length > 1);
});
by("model").addEventListener("change", () => fillTargets(by("to"), by("model").value));
by("key")?.addEventListener("change", () => by("ask").requestSubmit());
addEventListener("themechange", () => explorer?.draw());
const model = fillTargets(by("to"), by("model").value);
if (!by("text").value) by("text").value = model.example;
by("ask").requestSubmit();
