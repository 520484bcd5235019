// Starts the explorer in a page of its own: the inspections lie in the page.
import { make, say, setLanguage } from "./dom.js";
import { Explorer } from "./explorer.js";

const root = document.documentElement;
const dark = window.matchMedia("(prefers-color-scheme: dark)");
root.dataset.theme = dark.matches ? "dark" : "light";
setLanguage(navigator.language);
if (navigator.language.startsWith("zh")) root.lang = "zh-Hans";
const explorer = new Explorer(document.getElementById("explorer"), JSON.parse(document.getElementById("data").textContent));
document.getElementById("theme").append(make("button", { type: "button", class: "button", text: `◐ ${say("theme")}`, on: { click: () => {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  explorer.draw();
} } }));
