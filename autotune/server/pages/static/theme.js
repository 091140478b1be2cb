// The colours that somebody chose, before anything is drawn: `light`, `dark`, or as the system has them.
(() => {
  const KEY = "autotune-theme";
  const NEXT = { auto: "light", light: "dark", dark: "auto" };
  let theme = "auto";
  try { theme = localStorage.getItem(KEY) || "auto"; } catch { /* storage is off */ }
  if (!(theme in NEXT)) theme = "auto";

  function show(button) {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    if (!button) return;
    button.textContent = `Theme: ${theme}`;
  }

  show(null);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.querySelector("[data-theme-toggle]");
    show(button);
    button.addEventListener("click", () => {
      theme = NEXT[theme];
      try { localStorage.setItem(KEY, theme); } catch { /* it lasts for this page */ }
      show(button);
    });
  });
})();
