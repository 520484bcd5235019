// Light or dark before anything is drawn: what was chosen here last, else what the system has.
(() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* no storage: the system decides */ }
  const apply = () => { root.dataset.theme = chosen ?? (dark.matches ? "dark" : "light"); };
  apply();
  dark.addEventListener("change", apply);
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      chosen = root.dataset.theme === "dark" ? "light" : "dark";
      try { localStorage.setItem("theme", chosen); } catch { /* as above */ }
      apply();
      dispatchEvent(new Event("themechange"));
    });
  });
})();
