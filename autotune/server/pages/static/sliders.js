// Memory by part at a length and a micro-batch: between the estimated lengths, linearly.
(() => {
  const WIDTH = 1000;

  function bytes(count) {
    let value = count, unit = "B";
    for (const larger of ["KiB", "MiB", "GiB", "TiB"]) {
      if (Math.abs(value) < 999.5) break;
      value /= 1024;
      unit = larger;
    }
    return `${unit === "B" ? Math.round(value) : Number(value.toPrecision(3))} ${unit}`;
  }

  function speed(perSecond) {
    const k = perSecond >= 1000;
    return `${Number((k ? perSecond / 1000 : perSecond).toPrecision(3))}${k ? "k" : ""} tokens/s`;
  }

  const between = (a, b, share) => (a == null || b == null ? null : a + (b - a) * share);

  /** The estimate at a length of a micro-batch, of points that are sorted by length. */
  function at(points, length) {
    let n = points.findIndex((point) => point.max_length >= length);
    if (n < 0) n = points.length - 1;
    const high = points[n], low = points[Math.max(n - 1, 0)];
    const span = high.max_length - low.max_length;
    const share = span > 0 ? Math.min(Math.max((length - low.max_length) / span, 0), 1) : 1;
    const parts = {};
    for (const name of new Set([...Object.keys(low.parts), ...Object.keys(high.parts)])) {
      parts[name] = between(low.parts[name] ?? 0, high.parts[name] ?? 0, share);
    }
    return {
      parts,
      peak: between(low.peak_memory_bytes, high.peak_memory_bytes, share),
      risk: between(low.p_oom, high.p_oom, share),
      speed: between(low.tokens_per_s, high.tokens_per_s, share),
    };
  }

  function draw(card, estimate, scale, limit) {
    let x = 0;
    for (const rect of card.querySelectorAll("#slide-bar rect")) {
      const width = (WIDTH * Math.max(estimate.parts[rect.dataset.part] ?? 0, 0)) / scale;
      rect.setAttribute("x", x.toFixed(2));
      rect.setAttribute("width", width.toFixed(2));
      x += width;
    }
    const said = [];
    for (const item of card.querySelectorAll(".legend li[data-part]")) {
      const size = estimate.parts[item.dataset.part] ?? 0;
      item.hidden = size <= 0;
      item.querySelector("b").textContent = bytes(size);
      if (size > 0) said.push(`${item.dataset.part} ${bytes(size)}`);
    }
    const whole = `${bytes(estimate.peak)} of ${bytes(limit)}`;
    card.querySelector("#slide-bar").setAttribute("aria-label", `${whole}: ${said.join(", ")}`);
    const fits = estimate.risk == null ? estimate.peak <= limit : estimate.risk <= 0.05;
    const maybe = !fits && estimate.risk != null && estimate.risk < 0.95;
    const verdict = card.querySelector("#slide-verdict");
    const words = [whole, fits ? "fits" : maybe ? "may fit" : "does not fit"];
    if (estimate.speed != null) words.push(speed(estimate.speed));
    verdict.textContent = words.join(" · ");
    verdict.className = fits ? "yes" : maybe ? "maybe" : "no";
  }

  function start(card) {
    const { points, limit, sizes, scale } = JSON.parse(card.dataset.slides);
    const size = card.querySelector("#slide-size"), length = card.querySelector("#slide-length");
    const sizeOut = card.querySelector("#slide-size-out");
    const lengthOut = card.querySelector("#slide-length-out");
    const bySize = new Map(sizes.map((one) => [one, points.filter((p) => p.micro_batch === one)
      .sort((a, b) => a.max_length - b.max_length)]));
    const show = () => {
      const chosen = sizes[Number(size.value)];
      const rows = Number(length.value);
      sizeOut.textContent = chosen;
      size.setAttribute("aria-valuetext", String(chosen));
      if (lengthOut) {
        lengthOut.textContent = `${rows} tokens`;
        length.setAttribute("aria-valuetext", `${rows} tokens`);
      }
      draw(card, at(bySize.get(chosen), length.disabled ? Infinity : rows), scale, limit);
    };
    size.addEventListener("input", show);
    length.addEventListener("input", show);
    show();
  }

  htmx.onLoad((root) => {
    const cards = root.matches?.("[data-slides]") ? [root] : root.querySelectorAll("[data-slides]");
    for (const card of cards) {
      if (card.dataset.started) continue;
      card.dataset.started = "1";
      start(card);
    }
  });
})();
