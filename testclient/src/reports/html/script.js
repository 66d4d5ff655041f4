"use strict";
(() => {
  const reading = document.createElement("div");
  reading.id = "reading";
  reading.setAttribute("role", "status");
  document.body.append(reading);
  let cursor = null;
  const leave = () => { if (cursor) { cursor.remove(); cursor = null; } reading.textContent = ""; };
  for (const plot of document.querySelectorAll("svg[data-readings]")) {
    const points = plot.dataset.readings.split("\n").map((line) => {
      const [at, text] = line.split("\t");
      return { at: Number(at), text };
    });
    const height = plot.viewBox.baseVal.height;
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const at = (event.clientX - box.left) / box.width * plot.viewBox.baseVal.width;
      const nearest = points.reduce((best, point) =>
        Math.abs(point.at - at) < Math.abs(best.at - at) ? point : best);
      if (!cursor || cursor.parentNode !== plot) {
        if (cursor) cursor.remove();
        cursor = document.createElementNS(plot.namespaceURI, "line");
        cursor.setAttribute("class", "cursor");
        cursor.setAttribute("y1", 0);
        cursor.setAttribute("y2", height);
        plot.append(cursor);
      }
      cursor.setAttribute("x1", nearest.at);
      cursor.setAttribute("x2", nearest.at);
      reading.textContent = nearest.text;
    });
    plot.addEventListener("pointerleave", leave);
  }
  for (const name of document.querySelectorAll("[data-toggles]")) {
    name.setAttribute("role", "button");
    name.setAttribute("tabindex", "0");
    name.setAttribute("aria-pressed", "false");
    const toggle = () => {
      const hide = name.getAttribute("aria-pressed") !== "true";
      name.setAttribute("aria-pressed", String(hide));
      for (const mark of name.closest("figure").querySelectorAll("[data-series]")) {
        if (mark.dataset.series === name.dataset.toggles) mark.classList.toggle("hidden", hide);
      }
    };
    name.addEventListener("click", toggle);
    name.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); }
    });
  }
  document.documentElement.dataset.script = "ran";
})();
