// The page that translates: as one types, with other words at a click.
import { by, post, told, words } from "./server.js";

const [text, output, source, target] = ["text", "output", "source", "target"].map(by);
const [status, count, copy, clear, look] = ["status", "count", "copy", "clear", "look"].map(by);
const state = { before: "", sentences: [], running: null, timer: 0, detected: "", chosen: "" };
const size = () => [...text.value].length; // as the server counts: a smiley is one
const nameOf = (code) => [...source.options].find((one) => one.value === code)?.textContent ?? code;

// -- translating ------------------------------------------------------------------------------------------------------

function schedule(wait) {
  clearTimeout(state.timer);
  state.running?.abort();
  state.timer = setTimeout(translate, wait);
}

async function translate() {
  const asked = text.value;
  remember();
  if (!asked.trim()) { show([]); say(""); return; }
  if (size() > told.characters) { say(words.too_long.replace("{limit}", told.characters), true); return; }
  const running = new AbortController();
  state.running = running;
  const patience = setTimeout(() => say(words.waiting), 300);
  try {
    const answer = await post("/v1/translate", { text: asked, source: source.value, target: target.value }, running.signal);
    const [found] = answer.translations;
    state.detected = found.detected?.language ?? "";
    if (turned()) { schedule(0); return; }
    state.before = found.sentences?.length ? found.before : "";
    show(found.sentences?.length ? found.sentences : [{ source: asked, text: found.text, space: "" }]);
    say(state.detected ? `${words.detected}: ${nameOf(state.detected)}` : "");
    by("spoken").textContent = found.text;
  } catch (error) {
    if (error.name === "AbortError") return;
    if (error.wait && [429, 503].includes(error.status)) { say(words.busy); schedule(1000 * error.wait); return; }
    say(error instanceof TypeError ? words.offline : error.language ? unknown(error.language) : error.message, true);
  } finally {
    clearTimeout(patience);
    if (state.running === running) state.running = null;
  }
}

/** What is said of a text in a language that no model here translates. */
function unknown(code) {
  const language = new Intl.DisplayNames([told.language], { type: "language" }).of(code);
  const known = [...source.options].filter((one) => one.value !== "auto").map((one) => one.textContent).join(words.comma);
  return words.unknown.replace("{language}", language).replace("{known}", known);
}

/** Whether text that is in the target's language already goes to another one now, unless just this one was chosen. */
function turned() {
  const [ways, own] = [told.ways[state.detected] ?? [], target.value];
  if (source.value !== "auto" || state.detected !== own || state.chosen === own || !ways.length) return false;
  const liked = navigator.languages.map((one) => one.split("-")[0]).find((one) => ways.includes(one));
  target.value = liked ?? ways[0];
  return true;
}

function say(message, wrong = false) {
  status.textContent = message;
  status.classList.toggle("error", wrong);
}

const translation = () => state.before + state.sentences.map((one) => one.text + one.space).join("");

// -- what is shown ----------------------------------------------------------------------------------------------------

/** Sentences, each word of which can be clicked; one stop of the Tab key, arrows go from word to word. */
function show(sentences) {
  closeMenu();
  state.sentences = sentences;
  output.lang = target.value; // for voices and fonts
  output.replaceChildren(...(sentences.length && state.before ? [document.createTextNode(state.before)] : []), ...sentences.flatMap((one, number) => [...wordsOf(one, number), document.createTextNode(one.space)]));
  const first = output.querySelector(".word");
  if (first) first.tabIndex = 0;
  for (const element of [copy, look]) element.hidden = !sentences.length;
  const model = told.models.find((one) => one.pairs.some(([from, to]) => to === target.value && [state.detected, source.value].includes(from))) ?? told.models[0];
  const query = new URLSearchParams({ lang: told.language, text: sentences[0]?.source ?? "", model: model.name, to: target.value });
  look.href = `/explore?${query}`;
}

function wordsOf(sentence, number) {
  const cutter = new Intl.Segmenter(target.value || "en", { granularity: "word" });
  return [...cutter.segment(sentence.text)].map(({ segment, index, isWordLike }) => {
    if (!isWordLike) return document.createTextNode(segment);
    const word = document.createElement("span");
    Object.assign(word, { className: "word", textContent: segment, tabIndex: -1 });
    word.setAttribute("role", "button");
    word.setAttribute("aria-haspopup", "listbox");
    Object.assign(word.dataset, { sentence: number, place: index });
    return word;
  });
}

function walk(word, by) {
  const every = [...output.querySelectorAll(".word")];
  const next = every[every.indexOf(word) + by];
  if (!next) return;
  word.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

// -- other words ------------------------------------------------------------------------------------------------------

let menu = null;

function closeMenu() {
  menu?.list.remove();
  menu?.asking.abort();
  menu?.word.classList.remove("open");
  menu = null;
}

async function openMenu(word) {
  closeMenu();
  const sentence = state.sentences[word.dataset.sentence];
  const before = sentence.text.slice(0, word.dataset.place);
  const list = document.createElement("ul");
  Object.assign(list, { className: "card menu", tabIndex: -1 });
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", words.alternatives);
  list.append(entry(words.waiting, "faint"));
  menu = { list, word, asking: new AbortController() };
  word.classList.add("open");
  by("content").append(list);
  place(list, word);
  try {
    const from = source.value === "auto" ? state.detected : source.value;
    const asked = { text: sentence.source, source: from, target: target.value, before, current: sentence.text };
    const answer = await post("/page/alternatives", asked, menu.asking.signal);
    if (menu?.list !== list) return;
    const others = answer.alternatives;
    list.replaceChildren(...others.map((one) => option(one, before, word)));
    if (!others.length) list.append(entry(words.none, "faint"));
    (list.querySelector("[role=option]") ?? list).focus();
    place(list, word);
  } catch (error) {
    if (error.name !== "AbortError") list.replaceChildren(entry(error.message, "error"));
  }
}

function entry(message, kind) {
  const item = document.createElement("li");
  Object.assign(item, { textContent: message, className: kind });
  item.setAttribute("role", "presentation");
  return item;
}

function option(one, before, word) {
  const item = document.createElement("li");
  item.tabIndex = -1;
  item.setAttribute("role", "option");
  const [strong, rest] = [document.createElement("strong"), document.createElement("span")];
  strong.textContent = one.word;
  rest.textContent = one.text.slice(before.trimEnd().length).trimStart().slice(one.word.length, 90);
  rest.className = "faint";
  item.append(strong, rest);
  item.addEventListener("click", () => {
    const { sentence, place: index } = word.dataset;
    const changed = state.sentences.map((own, number) => (number === Number(sentence) ? { ...own, text: one.text } : own));
    show(changed);
    by("spoken").textContent = translation();
    (output.querySelector(`[data-sentence="${sentence}"][data-place="${index}"]`) ?? output.querySelector(".word"))?.focus();
  });
  return item;
}

function place(list, word) {
  const [box, own] = [word.getBoundingClientRect(), list.getBoundingClientRect()];
  list.style.left = `${Math.max(8, Math.min(box.left, innerWidth - own.width - 8)) + scrollX}px`;
  list.style.top = `${box.bottom + 6 + scrollY}px`;
}

document.addEventListener("pointerdown", (event) => { if (menu && !menu.list.contains(event.target)) closeMenu(); });
document.addEventListener("keydown", (event) => {
  if (menu && event.key === "Escape") { const { word } = menu; closeMenu(); word.focus(); return; }
  const chosen = event.target.closest?.("[role=option]");
  if (!chosen) return;
  if (["Enter", " "].includes(event.key)) chosen.click();
  else if (event.key === "ArrowDown") (chosen.nextElementSibling ?? chosen).focus();
  else if (event.key === "ArrowUp") (chosen.previousElementSibling ?? chosen).focus();
  else return;
  event.preventDefault();
});
output.addEventListener("click", (event) => {
  const word = event.target.closest(".word");
  if (word && getSelection().isCollapsed) openMenu(word); // who marks text to copy it wants no menu
});
output.addEventListener("keydown", (event) => {
  const word = event.target.closest(".word");
  if (!word) return;
  if (["Enter", " "].includes(event.key)) openMenu(word);
  else if (event.key === "ArrowRight") walk(word, 1);
  else if (event.key === "ArrowLeft") walk(word, -1);
  else return;
  event.preventDefault();
});

// -- controls ---------------------------------------------------------------------------------------------------------

function counted() {
  count.textContent = `${size()} / ${told.characters}`;
  count.classList.toggle("error", size() > told.characters);
  clear.hidden = !text.value;
}

/** Only languages that the source can be translated to. */
function fit() {
  const ways = told.ways[source.value] ?? Object.values(told.ways).flat();
  for (const option of target.options) option.disabled = !ways.includes(option.value);
  if (target.selectedOptions[0]?.disabled) target.value = ways[0];
  by("swap").disabled = !wayBack();
}

/** The language that the translation can be translated back to, if there is a way. */
function wayBack() {
  const from = source.value === "auto" ? state.detected : source.value;
  return told.ways[target.value]?.includes(from) ? from : "";
}

function swap() {
  const from = wayBack();
  if (!from) return;
  const now = translation();
  source.value = target.value;
  fit();
  target.value = from;
  if (now) text.value = now;
  counted();
  schedule(0);
}

async function copied() {
  const now = translation();
  try { await navigator.clipboard.writeText(now); } catch {
    const range = document.createRange();
    range.selectNodeContents(output);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    document.execCommand("copy");
  }
  say(words.copied);
}

function remember() {
  try { localStorage.setItem("languages", JSON.stringify([source.value, target.value])); } catch { /* no storage */ }
}

text.addEventListener("input", () => { counted(); schedule(250); });
source.addEventListener("change", () => { fit(); schedule(0); });
target.addEventListener("change", () => { state.chosen = target.value; fit(); schedule(0); });
by("swap").addEventListener("click", swap);
by("key")?.addEventListener("change", () => schedule(0));
copy.addEventListener("click", copied);
clear.addEventListener("click", () => { text.value = ""; counted(); schedule(0); text.focus(); });
document.addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey)) return;
  if (event.key === "Enter") schedule(0);
  else if (event.shiftKey && event.key.toLowerCase() === "s") swap();
  else if (event.shiftKey && event.key.toLowerCase() === "c") copied();
  else return;
  event.preventDefault();
});
new MutationObserver(fit).observe(status, { childList: true, characterData: true, subtree: true });
try {
  const [from, to] = JSON.parse(localStorage.getItem("languages") ?? "[]");
  if ([...source.options].some((one) => one.value === from)) source.value = from;
  if ([...target.options].some((one) => one.value === to)) target.value = to;
} catch { /* no storage */ }
fit();
counted();
if (text.value.trim()) schedule(0);
