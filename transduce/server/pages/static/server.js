// What the pages have in common: what the server told them, and how they ask it.

export const told = JSON.parse(document.body.dataset.page);
export const words = told.words;
export const by = (id) => document.getElementById(id);

/** The answer as JSON; throws an Error with the server's words, with `wait` seconds where it says when to come again. */
export async function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  const key = by("key")?.value;
  if (key) headers.authorization = `Bearer ${key}`;
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  const tree = await answer.json().catch(() => ({}));
  if (answer.ok) return tree;
  const error = new Error(tree.error ?? tree.message ?? `${answer.status}`);
  error.status = answer.status;
  error.language = tree.language; // in which the text seems to be, where that is what is wrong
  error.wait = Number(answer.headers.get("retry-after")) || 0;
  throw error;
}

/** Fills the languages that a model can be told to translate into. */
export function fillTargets(select, name) {
  const model = told.models.find((one) => one.name === name) ?? told.models[0];
  const entries = model.to.filter(([code]) => model.tagged.includes(code));
  const now = select.dataset.chosen || select.value;
  select.replaceChildren(...(entries.length ? entries : [["", model.to[0]?.[1] ?? ""]]).map(([code, text]) => new Option(text, entries.length ? code : "")));
  if (entries.some(([code]) => code === now)) select.value = now;
  else if (entries.length > 1) select.value = entries.find(([code]) => code !== model.pairs[0][0])?.[0] ?? entries[0][0];
  return model;
}
