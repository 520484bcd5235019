// The API's page: what stands in a form is sent as it is, and the answer shown as it came.
import { by } from "./server.js";

/** Indented, but for lists of numbers, which stay on a line. */
function readable(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1).replace(/\[[\s\d.,e+-]*\]/g, (list) => list.replace(/\s+/g, " "));
  } catch {
    return text; // lines of JSON, or no JSON at all
  }
}

async function send(form) {
  const { method, path } = form.dataset;
  const [told, came] = [form.querySelector("[role=status]"), form.querySelector(".came")];
  const headers = by("key")?.value ? { authorization: `Bearer ${by("key").value}` } : {};
  const body = form.querySelector("textarea")?.value;
  if (body !== undefined) headers["content-type"] = "application/json";
  const begun = performance.now();
  came.hidden = true;
  told.textContent = "…";
  try {
    const answer = await fetch(path, { method, headers, body });
    came.textContent = readable(await answer.text());
    came.hidden = false;
    told.textContent = `${answer.status} ${answer.statusText} · ${Math.round(performance.now() - begun)} ms`;
    told.classList.toggle("error", !answer.ok);
  } catch (error) {
    told.textContent = error.message;
    told.classList.add("error");
  }
}

function command(form) {
  const body = form.querySelector("textarea")?.value.replace(/\n\s*/g, "").replaceAll("'", "'\\''");
  const words = body === undefined ? "" : ` --json '${body}'`;
  form.querySelector(".shell").textContent = `curl -s ${location.origin}${form.dataset.path}${words}`;
}

for (const form of document.querySelectorAll(".try")) {
  command(form);
  form.addEventListener("input", () => command(form));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
}
