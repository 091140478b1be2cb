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

  document.addEventListener("htmx:sseError", (event) => event.target.classList.add("away"));
  document.addEventListener("htmx:sseOpen", (event) => event.target.classList.remove("away"));

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
