// The stages of a running training as bars over time: a lane a stage, the newest batches.
//
// Above it: dashboard.js. Below it: words.js. The slices are those of `/stages`: stage, side of a
// wait ("" for work), batch, start, end.

import { element, time } from "./words.js";

const STAGES = ["network", "fetch", "copy", "compute"];
const COLOURS = { network: "#3b82c4", fetch: "#2e9e6b", copy: "#8a6ad6", compute: "#d97706" };
const LEAST_WIDTH = 320;
const LEFT = 72;
const LANE = 26;
const SVG = "http://www.w3.org/2000/svg";

function node(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

/** A panel with the bars of one trainer. */
export class Gantt {
  constructor(target) {
    this.root = element("section", "", { class: "panel row", "data-gantt": target });
    const title = element("h3", `Stages of ${target}`);
    title.id = `gantt-${target}`;
    this.root.setAttribute("aria-labelledby", title.id);
    const help = "The newest batches: tall bars are work, one batch dark and the next lighter; "
      + "thin pale strips are waits. Where the lowest lane is full, nothing waits.";
    this.place = element("div");
    this.root.append(title, element("p", help, { class: "help" }), this.place);
  }

  draw(slices) {
    const worked = slices.filter((slice) => slice[1] === "");
    if (worked.length === 0) return;
    const end = Math.max(...worked.map((slice) => slice[4]));
    const begin = Math.min(...worked.map((slice) => slice[3]));
    const wide = Math.max(end - begin, 1e-6);
    const width = Math.max(this.place.clientWidth, LEAST_WIDTH);
    const place = (moment) => LEFT + (width - LEFT - 8) * (moment - begin) / wide;
    const height = STAGES.length * LANE + 22;
    const drawing = node("svg", { viewBox: `0 0 ${width} ${height}`, class: "gantt", role: "img" });
    const batches = worked.map((slice) => slice[2]);
    drawing.append(node("title", {}, `Stages over the last ${time(wide)}, batches `
      + `${Math.min(...batches)} to ${Math.max(...batches)}`));
    STAGES.forEach((stage, lane) => {
      drawing.append(node("text", { x: 0, y: lane * LANE + 17 }, stage));
      drawing.append(node("line", {
        x1: LEFT, x2: width - 8, y1: (lane + 1) * LANE - 1, y2: (lane + 1) * LANE - 1,
      }));
    });
    for (const [stage, side, batch, start, stop] of slices) {
      const lane = STAGES.indexOf(stage);
      if (lane < 0 || stop < begin) continue;
      const left = place(Math.max(start, begin));
      const bar = node("rect", {
        x: left.toFixed(2),
        y: lane * LANE + (side ? 10 : 4),
        width: Math.max(place(stop) - left, 0.6).toFixed(2),
        height: side ? 6 : 18,
        fill: COLOURS[stage],
        "fill-opacity": side ? 0.25 : batch % 2 ? 1 : 0.7,
      });
      const what = side ? `${stage} waits for ${side}` : `${stage} of batch ${batch}`;
      bar.append(node("title", {}, `${what}: ${time(stop - start)}`));
      drawing.append(bar);
    }
    drawing.append(node("text", { x: LEFT, y: height - 5 }, "0"));
    drawing.append(node("text", { x: width - 8, y: height - 5, "text-anchor": "end" }, time(wide)));
    this.place.replaceChildren(drawing);
  }
}
