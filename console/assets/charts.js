// Draws each chart from the table beside it. Dragging zooms in, a double click zooms out. The zoom
// stays when the page refreshes itself.
"use strict";

const zoomed = new Map(); // by the chart's id: [from, to]
const dashes = [[], [6, 3], [2, 3], [9, 3, 2, 3]]; // so that lines differ by more than their colours
const dark = window.matchMedia("(prefers-color-scheme: dark)");
let drawn = [];

const exact = new Intl.NumberFormat("en-US");
const hour = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const dayHour = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const short = new Intl.NumberFormat("en-US", { notation: "compact" });

function valuesOf(figure) {
  const from = Number(figure.dataset.from), step = Number(figure.dataset.step), count = Number(figure.dataset.count);
  const heads = [...figure.querySelectorAll("th[data-tone]")];
  const empty = figure.dataset.unit === "" ? 0 : null;
  const data = [Array.from({ length: count }, (_, i) => from + i * step), ...heads.map(() => new Array(count).fill(empty))];
  for (const tr of figure.querySelectorAll("tbody tr")) {
    const at = (Date.parse(tr.querySelector("time").dateTime) / 1000 - from) / step;
    [...tr.querySelectorAll("td.n")].forEach((td, i) => {
      const text = td.textContent.replace(/[^0-9]/g, "");
      data[i + 1][at] = text === "" ? null : Number(text);
    });
  }
  return { heads, data };
}

// tellZoom shows the visible period in the button beside the title. The button ends the zoom.
function tellZoom(figure, u) {
  const button = figure.querySelector("[data-unzoom]"), zoom = zoomed.get(figure.id);
  button.hidden = !zoom;
  if (!zoom) return;
  const format = Number(figure.dataset.step) < 3600 ? hour : dayHour;
  const clock = (s) => format.format(new Date(s * 1000));
  button.textContent = clock(zoom[0]) + " – " + clock(zoom[1]) + ", show all";
  button.onclick = () => {
    zoomed.delete(figure.id);
    u.setScale("x", { min: u.data[0][0], max: u.data[0].at(-1) });
    tellZoom(figure, u);
  };
}

function draw(figure) {
  const plot = figure.querySelector(".plot");
  if (!plot || plot.firstChild) return;
  const { heads, data } = valuesOf(figure);
  const css = getComputedStyle(document.documentElement);
  const colour = (name) => css.getPropertyValue("--" + name).trim();
  const unit = figure.dataset.unit ? " " + figure.dataset.unit : "";
  const axis = { stroke: colour("dim"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px " + css.getPropertyValue("--sans") };
  const u = new uPlot({
    width: plot.clientWidth, height: 170, legend: { live: true },
    cursor: { sync: { key: "time" }, drag: { x: true, y: false }, points: { size: 6 } },
    scales: { y: { range: (_, min, max) => [0, Math.max(1, max) * 1.08] } },
    axes: [
      { ...axis, size: 44, values: [[86400, "{MMM} {D}", null, null, null, null, null, null, 1], [3600, "{HH}:{mm}", "\n{MMM} {D}", null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1]] },
      { ...axis, size: 60, values: (_, all) => all.map((v) => (Number.isInteger(v) ? short.format(v) + unit : "")) },
    ],
    series: [
      { label: "Time", value: "{MMM} {D}, {HH}:{mm}" },
      ...heads.map((th, i) => ({
        label: th.textContent, stroke: colour(th.dataset.tone), width: 1.75, dash: dashes[i], points: { show: false },
        fill: heads.length === 1 ? colour(th.dataset.tone + "-bg") : undefined,
        value: (_, v) => (v === null || v === undefined ? "–" : exact.format(v) + unit),
      })),
    ],
    hooks: {
      setSelect: [(u) => {
        if (u.select.width <= 0) return;
        zoomed.set(figure.id, [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
        tellZoom(figure, u);
      }],
      ready: [(u) => u.over.addEventListener("dblclick", () => { zoomed.delete(figure.id); tellZoom(figure, u); })],
    },
  }, data, plot);
  const zoom = zoomed.get(figure.id);
  if (zoom) u.setScale("x", { min: zoom[0], max: zoom[1] });
  tellZoom(figure, u);
  figure.dataset.drawn = "";
  drawn.push({ figure, u });
}

function drawAll() {
  drawn = drawn.filter(({ figure, u }) => figure.isConnected || u.destroy());
  for (const figure of document.querySelectorAll("figure.chart")) draw(figure);
}

function redraw() {
  for (const { figure, u } of drawn) {
    u.destroy();
    figure.querySelector(".plot").replaceChildren();
  }
  drawn = [];
  drawAll();
}

let resizing = 0;
window.addEventListener("resize", () => {
  cancelAnimationFrame(resizing);
  resizing = requestAnimationFrame(() => { for (const { figure, u } of drawn) u.setSize({ width: figure.querySelector(".plot").clientWidth, height: 170 }); });
});
dark.addEventListener("change", redraw);
document.addEventListener("htmx:load", drawAll);
drawAll();
