// Plots: a panel with the lines of one kind of figure, of all targets, and a table of their newest
// values, which says in words what the plot shows.
//
// Above it: dashboard.js. Below it: uPlot, words.js.

import { colour, dash, element, mark, shown } from "./words.js";

const HEIGHT = 160;
const POWERS = Array.from({ length: 60 }, (_, idx) => 2 ** idx); // between marks of bytes
const MOST_LINES = 32; // in a plot; the table has all

/** The text after the slash of a figure, and the target where there are several. */
function label(target, figure, panel, isOne) {
  const part = figure === panel.name ? "" : figure.slice(panel.name.length + 1);
  if (isOne && part) return part;
  return part ? `${target}: ${part}` : target;
}

/** A panel of panels.py, in the page from the first figure on. */
export class Plot {
  constructor(panel) {
    this.panel = panel;
    this.root = element("section", "", { class: "panel", "data-panel": panel.name });
    const title = element("h3", panel.title, { id: `panel-${panel.name}` });
    this.root.setAttribute("aria-labelledby", title.id);
    this.place = element("div", "", { class: "plot", role: "img" });
    this.place.setAttribute("aria-label", `${panel.title} over time; its newest values follow`);
    const legend = element("div", "", { class: "legend", role: "region", tabindex: "0" });
    legend.setAttribute("aria-label", `${panel.title}, newest values`);
    const table = element("table");
    this.body = element("tbody");
    table.append(this.body);
    legend.append(table);
    this.root.append(title, element("p", panel.help, { class: "help" }), this.place, legend);
    this.lines = "";
    this.plot = null;
  }

  /** True of a figure that belongs here. */
  has(figure) {
    return figure === this.panel.name || figure.startsWith(`${this.panel.name}/`);
  }

  /** Draws what is kept. `kept`: by target {times, series}; `values`: by target the newest. */
  draw(kept, values, from, now) {
    const lines = [];
    for (const [target, history] of kept) {
      for (const figure of Object.keys(history.series)) {
        if (this.has(figure)) lines.push({ target, figure });
      }
    }
    if (lines.length === 0) return false;
    const isOne = new Set(lines.map((line) => line.target)).size === 1;
    this.tell(lines, values, isOne);
    const drawn = lines.slice(0, MOST_LINES);
    const names = JSON.stringify(drawn);
    const data = this.aligned(drawn, kept, from);
    if (this.plot === null || names !== this.lines) this.make(drawn, names, data, isOne);
    else this.plot.setData(data, false);
    const width = this.place.clientWidth;
    if (width && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
    this.plot.setScale("x", { min: from, max: now });
    return true;
  }

  aligned(lines, kept, from) {
    const tables = [];
    for (const target of new Set(lines.map((line) => line.target))) {
      const { times, series } = kept.get(target);
      let first = times.findIndex((time) => time >= from);
      first = first < 0 ? times.length : Math.max(first - 1, 0);
      const own = lines.filter((line) => line.target === target);
      tables.push([times.slice(first), ...own.map((line) => series[line.figure].slice(first))]);
    }
    // null is a gap; what another target's times leave undefined is none.
    return uPlot.join(tables, tables.map((table) => table.map(() => 2)));
  }

  make(lines, names, data, isOne) {
    if (this.plot !== null) this.plot.destroy();
    this.lines = names;
    const style = getComputedStyle(document.documentElement);
    const text = style.getPropertyValue("--soft").trim();
    const grid = { stroke: style.getPropertyValue("--line").trim(), width: 1 };
    const axis = { stroke: text, grid, ticks: grid, font: "12px system-ui, sans-serif" };
    const { unit } = this.panel;
    this.plot = new uPlot({
      width: this.place.clientWidth || 360,
      height: HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      scales: { x: { time: true, auto: false }, y: { range: reach } },
      axes: [{ ...axis, space: 70 }, {
        ...axis,
        size: 74,
        space: 36,
        values: (_, marks) => marks.map((value) => mark(value, unit)),
        ...(unit.startsWith("bytes") ? { incrs: POWERS } : {}),
      }],
      series: [{}, ...lines.map((line, idx) => ({
        label: label(line.target, line.figure, this.panel, isOne),
        stroke: colour(idx),
        dash: dash(idx),
        width: 1.75,
        spanGaps: false,
        points: { show: (plot, number, first, last) => last - first < 2 },
      }))],
    }, data, this.place);
  }

  /** The newest values as a table. */
  tell(lines, values, isOne) {
    const rows = lines.map(({ target, figure }, idx) => {
      const now = (values[target] || {})[figure];
      const row = element("tr", "", now === undefined ? { class: "gone" } : {});
      const head = element("th", "", { scope: "row" });
      const swatch = element("span", "", { class: "mark", "aria-hidden": "true" });
      swatch.style.background = idx < MOST_LINES ? colour(idx) : "transparent";
      head.append(swatch, label(target, figure, this.panel, isOne));
      const cell = element("td", shown(now, this.panel.unit), {
        "data-target": target, "data-figure": figure, "data-value": now === undefined ? "" : now,
      });
      row.append(head, cell);
      return row;
    });
    this.body.replaceChildren(...rows);
  }

  /** Colours may have changed. */
  forget() {
    this.lines = "";
  }
}

/** From 0 where that is not far; a flat line in the middle. */
function reach(plot, low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [Math.min(0, low), low > 0 ? low * 1.2 : 0];
  const room = 0.06 * (high - low);
  return [low >= 0 && low < 0.4 * high ? 0 : low - room, high + room];
}
