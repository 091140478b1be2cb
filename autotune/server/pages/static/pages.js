// What pages do in the browser: copy, times, problems, the form, events that come twice.
(() => {
  const on = (name, act) => document.addEventListener(name, act);

  async function copy(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const area = document.createElement("textarea"); // not a secure page: the older way
    area.value = text;
    area.className = "sr";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("refused");
  }

  on("click", async (event) => {
    const button = event.target.closest("[data-copy], [data-copy-link]");
    if (!button) return;
    const from = button.dataset.copy;
    const text = from ? document.querySelector(from).textContent : location.origin + location.pathname;
    const label = (button.dataset.label ??= button.textContent);
    button.textContent = await copy(text).then(() => "Copied", () => "Could not copy");
    setTimeout(() => { button.textContent = label; }, 1600);
    button.focus();
  });

  // Times in the reader's own zone.
  const SHORT = { month: "short", day: "numeric", hour: "numeric", minute: "2-digit" };
  htmx.onLoad((root) => {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const date = new Date(time.dateTime);
      const year = date.getFullYear() === new Date().getFullYear() ? {} : { year: "numeric" };
      time.title = time.textContent;
      time.textContent = new Intl.DateTimeFormat(undefined, { ...SHORT, ...year }).format(date);
    }
  });

  // Problems: from the service as HTML, from what stands before it as JSON or not at all.
  function showProblem(text) {
    const place = document.querySelector("#problems");
    if (!place) return;
    const card = document.createElement("p");
    card.className = "card bad";
    card.textContent = text;
    place.replaceChildren(card);
    place.focus();
  }
  const polls = (part) => (part?.getAttribute("hx-trigger") || "").startsWith("every");
  const last = new Map();
  on("htmx:beforeSwap", (event) => {
    const { elt, xhr } = event.detail;
    if ((xhr.getResponseHeader("content-type") || "").includes("json")) {
      event.detail.shouldSwap = false;
      showProblem(`The service answered ${xhr.status}.`);
    }
    // What is asked for again and again is shown when it has changed, and nothing is ticked in it.
    const asker = event.detail.requestConfig?.elt ?? elt;
    if (!polls(asker) || event.detail.requestConfig?.triggeringEvent?.type === "change") return;
    const ticked = asker.querySelector(":checked");
    if (ticked || last.get(asker.id) === xhr.responseText) event.detail.shouldSwap = false;
    if (!ticked) last.set(asker.id, xhr.responseText);
  });
  on("htmx:afterSwap", (event) => {
    if (event.detail.target?.id === "problems") event.detail.target.focus();
  });
  on("htmx:beforeRequest", (event) => {
    if (event.detail.requestConfig.verb === "post") document.querySelector("#problems")?.replaceChildren();
  });

  // A service that is away, on pages that follow a work.
  function setAway(away) {
    const note = document.querySelector("[data-away]");
    const text = away ? "The service does not answer. This page goes on by itself once it does." : "";
    if (note.textContent !== text) note.textContent = text;
  }
  on("htmx:sseError", () => setAway(true));
  on("htmx:sseOpen", () => setAway(false));
  on("htmx:afterOnLoad", () => setAway(false));
  on("htmx:sendError", (event) => {
    if (polls(event.detail.elt)) setAway(true);
    else showProblem("The service does not answer. Try it again in a moment.");
  });

  // After a connection is lost some events may come twice: what is there already is left out.
  on("htmx:oobBeforeSwap", (event) => {
    const { fragment, target } = event.detail;
    if (target.id !== "lines") return;
    target.dataset.follow = target.scrollTop + target.clientHeight >= target.scrollHeight - 24 ? "1" : "";
    for (const line of [...fragment.children]) if (document.getElementById(line.id)) line.remove();
  });
  on("htmx:oobAfterSwap", (event) => {
    const { target } = event.detail;
    if (target.id === "lines" && target.dataset.follow) target.scrollTop = target.scrollHeight;
  });

  // A report says how high it is.
  addEventListener("message", (event) => {
    const frame = document.querySelector("iframe.report");
    if (frame && event.source === frame.contentWindow && event.data.height > 0) {
      frame.height = Math.min(event.data.height, 60000);
    }
  });

  // The form: a job or another tool's file says what the fields would.
  htmx.onLoad(() => {
    const form = document.querySelector("[data-job-form]");
    if (!form || form.dataset.watched) return;
    form.dataset.watched = "1";
    const [box, method, rewards] = ["#text", "#method", "[data-rewards]"].map((name) => form.querySelector(name));
    const look = () => {
      const text = box.value.trim();
      const isConfig = text.startsWith("{") && /"(model_type|architectures|hidden_size)"/.test(text);
      form.querySelector("[data-fields]").hidden = !isConfig && /\n|:\s|^\{/.test(text);
      rewards.hidden = !rewards.dataset.rewards.split(" ").includes(method.value);
    };
    form.addEventListener("input", look);
    look();
  });
  on("change", (event) => {
    if (event.target.name !== "work") return;
    const chosen = [...event.target.form.querySelectorAll("[name=work]:checked")];
    if (chosen.length > 2) chosen.find((box) => box !== event.target).checked = false;
  });
})();
