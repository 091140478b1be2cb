// Draws the figures of a report: each is JSON in the page, whose colours are names of its properties.
"use strict";
(() => {
  const plots = [...document.querySelectorAll(".plot")];
  const sample = document.body.appendChild(document.createElement("i"));
  sample.hidden = true;
  const CONFIG = { displayModeBar: false, displaylogo: false };
  const NARROW = 560;

  // A name such as --accent as the colour that it is now.
  function seen(name) {
    sample.style.color = `var(${name})`;
    return getComputedStyle(sample).color;
  }

  function painted(value, key) {
    if (Array.isArray(value)) return value.map((part) => painted(part, key));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, painted(part, name)]));
    }
    return key === "color" && /^--[a-z0-9-]+$/.test(value) ? seen(value) : value;
  }

  function layoutOf(given, width) {
    const narrow = width < NARROW;
    const axis = { gridcolor: seen("--line"), zerolinecolor: seen("--line"), linecolor: seen("--edge") };
    const layout = {
      ...given,
      width,
      autosize: false,
      showlegend: true,
      dragmode: matchMedia("(pointer: fine)").matches ? "zoom" : false,
      font: { family: getComputedStyle(document.body).fontFamily, size: narrow ? 10 : 12, color: seen("--text") },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 8, r: 16, t: 28, b: 8 },
      hoverlabel: { align: "left", bgcolor: seen("--surface"), bordercolor: seen("--edge"), font: { color: seen("--text") } },
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, xanchor: "left" },
    };
    for (const name of Object.keys(given).filter((key) => /^[xy]axis/.test(key))) {
      layout[name] = { ...axis, ...given[name] };
    }
    return layout;
  }

  function draw(width) {
    for (const plot of plots) {
      const figure = painted(JSON.parse(document.getElementById(plot.dataset.figure).textContent));
      Plotly.react(plot, figure.data, layoutOf(figure.layout, width || plot.clientWidth), CONFIG);
    }
  }

  let due = 0;
  function drawSoon() {
    cancelAnimationFrame(due);
    due = requestAnimationFrame(() => draw());
  }

  // In a page's frame: without head and foot, and as high as it is.
  if (parent !== window) {
    document.documentElement.dataset.framed = "";
    const tell = () => parent.postMessage({ height: document.body.offsetHeight + 1 }, "*");
    new ResizeObserver(tell).observe(document.body);
  }

  draw();
  addEventListener("resize", drawSoon);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawSoon);
  // On paper: light, and as wide as A4 less its margins.
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.print = "";
    draw(660);
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    draw();
  });
})();
