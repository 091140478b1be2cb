// What all pages do in the browser: copy, times, problems, and the form of a plan.
(() => {
  // --- copying

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { /* not a secure page: the older way */ }
    const area = document.createElement("textarea");
    area.value = text;
    area.setAttribute("readonly", "");
    area.className = "sr";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }

  function said(button, text) {
    button.dataset.label ??= button.textContent;
    button.textContent = text;
    clearTimeout(button.timer);
    button.timer = setTimeout(() => { button.textContent = button.dataset.label; }, 1600);
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy], [data-copy-link]");
    if (!button) return;
    const link = location.origin + location.pathname;
    const text = button.dataset.copy ? document.querySelector(button.dataset.copy).textContent : link;
    const done = await copy(text);
    said(button, done ? "Copied" : "Could not copy");
    button.focus();
  });

  // --- times in the reader's own zone

  const SHORT = { month: "short", day: "numeric", hour: "numeric", minute: "2-digit" };
  const thisYear = new Intl.DateTimeFormat(undefined, SHORT);
  const anyYear = new Intl.DateTimeFormat(undefined, { ...SHORT, year: "numeric" });

  function localTimes(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      time.title = time.textContent;
      const date = new Date(time.dateTime);
      const format = date.getFullYear() === new Date().getFullYear() ? thisYear : anyYear;
      time.textContent = format.format(date);
    }
  }

  // --- problems: from the service as HTML, from what stands before it as JSON or not at all

  function showProblem(text) {
    const place = document.querySelector("#problems");
    if (!place) return;
    const card = document.createElement("div");
    card.className = "card bad";
    const line = document.createElement("p");
    line.textContent = text;
    card.append(line);
    place.replaceChildren(card);
    place.focus();
  }

  document.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr } = event.detail;
    const type = xhr.getResponseHeader("content-type") || "";
    if (!type.includes("json")) return;
    event.detail.shouldSwap = false;
    let detail = `The service answered ${xhr.status}.`;
    try { detail = JSON.parse(xhr.responseText).detail || detail; } catch { /* the number has to do */ }
    showProblem(detail);
  });
  // What is asked for again and again is shown when it has changed: nobody loses their place in it.
  const last = new Map();
  document.addEventListener("htmx:beforeSwap", (event) => {
    const { elt, xhr } = event.detail.requestConfig ? event.detail : {};
    if (!elt || !(elt.getAttribute("hx-trigger") || "").startsWith("every") || !elt.id) return;
    if (last.get(elt.id) === xhr.responseText) event.detail.shouldSwap = false;
    last.set(elt.id, xhr.responseText);
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target?.id === "problems") event.detail.target.focus();
  });
  document.addEventListener("htmx:sendError", (event) => {
    const polls = (event.detail.elt.getAttribute("hx-trigger") || "").includes("every");
    if (!polls) showProblem("The service does not answer. Try it again in a moment.");
  });
  document.addEventListener("htmx:beforeRequest", (event) => {
    const place = document.querySelector("#problems");
    if (place && event.detail.requestConfig.verb === "post") place.replaceChildren();
  });

  // --- the form of a plan: what was pasted decides which fields count

  const KINDS = {
    empty: "",
    name: "A model's name.",
    config: "A config.json: a model of this shape.",
    job: "A job.",
    other: "Neither a model's name nor a job, so far.",
  };
  // As plan_input.py has them.
  const NAME = new RegExp("^(?:[\\w.+-]{1,96}(?:/[\\w.+-]{1,96})?|/[^\\n:]{1,500}"
    + "|https?://(?:www\\.)?(?:huggingface\\.co|hf\\.co)/[\\w.+-]{1,96}/[\\w.+-]{1,96}"
    + "(?:/(?:tree|blob|resolve)/\\S{0,200})?/?(?:[?#]\\S{0,200})?)$");
  const OF_CONFIGS = /"(model_type|architectures|hidden_size|num_hidden_layers)"/;

  function kindOf(text) {
    const plain = text.trim();
    if (!plain) return "empty";
    if (plain.startsWith("{")) return OF_CONFIGS.test(plain) ? "config" : "job";
    if (NAME.test(plain)) return "name";
    return /\n|:(\s|$)/.test(plain) ? "job" : "other";
  }

  function watchForm(root) {
    const form = root.querySelector("[data-plan-form]");
    if (!form) return;
    const box = form.querySelector("#text");
    const fields = form.querySelector("[data-fields]");
    const note = form.querySelector("[data-says-it]");
    const said = form.querySelector("[data-kind]");
    const method = form.querySelector("#method");
    const rewards = form.querySelector("[data-rewards]");
    const look = () => {
      const kind = kindOf(box.value);
      said.textContent = KINDS[kind];
      note.hidden = kind !== "job";
      fields.hidden = kind === "job";
      rewards.hidden = kind === "job" || !rewards.dataset.rewards.split(" ").includes(method.value);
    };
    box.addEventListener("input", look);
    method.addEventListener("change", look);
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    look();
  }

  // --- two to compare

  document.addEventListener("change", (event) => {
    if (event.target.name !== "work") return;
    const chosen = [...event.target.form.querySelectorAll("[name=work]:checked")];
    if (chosen.length > 2) chosen.find((box) => box !== event.target).checked = false;
  });

  // Only a name is looked for in the history.
  document.addEventListener("htmx:configRequest", (event) => {
    const asks = event.target.closest?.("[data-of-name]");
    if (!asks || kindOf(document.querySelector("#text").value) === "name") return;
    asks.replaceChildren();
    event.preventDefault();
  });

  document.addEventListener("DOMContentLoaded", () => watchForm(document));
  htmx.onLoad(localTimes);
})();
