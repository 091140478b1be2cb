// A page that follows a plan or a run. Each update has what is new; after a connection is lost for
// long, some of it may come twice: what is there already (by its id) is left out.
(() => {
  document.addEventListener("htmx:oobBeforeSwap", (event) => {
    const { fragment, target } = event.detail;
    for (const part of [...fragment.children]) {
      if (part.id && part.parentNode === fragment && target.contains(document.getElementById(part.id))
          && target.id !== part.id) part.remove();
    }
  });

  const AWAY = "The service does not answer. This page goes on by itself once it does.";

  function setAway(part, away) {
    part.classList.toggle("away", away);
    const note = document.querySelector("[data-away]");
    const text = away ? AWAY : "";
    if (note && note.textContent !== text) note.textContent = text;
  }

  const polls = (part) => (part.getAttribute("hx-trigger") || "").includes("every");
  document.addEventListener("htmx:sseError", (event) => setAway(event.target, true));
  document.addEventListener("htmx:sseOpen", (event) => setAway(event.target, false));
  document.addEventListener("htmx:sendError", (event) => {
    if (polls(event.detail.elt)) setAway(event.detail.elt, true);
  });
  document.addEventListener("htmx:afterOnLoad", (event) => {
    if (polls(event.detail.elt)) setAway(event.detail.elt, false);
  });

  // A log stays at its end, unless somebody has scrolled up.
  document.addEventListener("htmx:sseBeforeMessage", () => {
    const log = document.querySelector("#lines");
    if (log) log.dataset.follow = log.scrollTop + log.clientHeight >= log.scrollHeight - 24 ? "1" : "";
  });
  document.addEventListener("htmx:sseMessage", () => {
    const log = document.querySelector("#lines");
    if (log && log.dataset.follow) log.scrollTop = log.scrollHeight;
  });
  document.addEventListener("toggle", (event) => {
    if (event.target.id !== "log" || !event.target.open) return;
    const log = event.target.querySelector("#lines");
    log.scrollTop = log.scrollHeight;
  }, true);
})();
