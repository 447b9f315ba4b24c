// The page of `hps dashboard`: what the stream says, as tables and plots.
//
// Above it: index.html. Below it: plots.js, gantt.js, words.js; the stream /events, whose first
// event has all that is kept and whose others have what each round adds. A browser whose stream
// breaks off comes back by itself and is given what it has missed.

import { Gantt } from "./gantt.js";
import { Plot } from "./plots.js";
import { element, shown, time } from "./words.js";

const MOST_POINTS = 2000; // of a target; then all is asked for anew, thinned out
const LEAST_SECONDS = 60; // that a plot spans
const GANTT_GROUP = "Pipeline";
const STATES = { up: "up", away: "away", ended: "ended", "not reached yet": "new" };

const kept = new Map(); // target -> {times, series}
const gantts = new Map();
let plots = [];
let groups = new Map(); // heading -> its section and the place of its panels
let last = null; // what the newest round said
let stream = null;

const span = document.querySelector("#span");
const link = document.querySelector("#link");

function connect() {
  if (stream !== null) stream.close();
  stream = new EventSource("events");
  stream.addEventListener("history", (event) => begin(JSON.parse(event.data)));
  stream.addEventListener("round", (event) => add(JSON.parse(event.data)));
  stream.onopen = () => say("live", "up");
  stream.onerror = () => {
    say(last === null ? "the dashboard does not answer" : `no news since ${clock(last.time)}: the `
      + "dashboard does not answer", "away");
    // A refusal closes it for good; what broke off comes back by itself.
    if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 5000);
  };
}

function say(words, state) {
  link.textContent = words;
  link.className = state;
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString();
}

function begin(told) {
  kept.clear();
  for (const [target, history] of Object.entries(told.history)) kept.set(target, history);
  if (plots.length === 0) {
    plots = told.panels.map((panel) => new Plot(panel));
    for (const panel of told.panels) group(panel.group);
  }
  last = told;
  draw();
}

function group(name) {
  if (groups.has(name)) return groups.get(name);
  const section = element("section");
  const title = element("h2", name, { id: `group-${groups.size}` });
  section.setAttribute("aria-labelledby", title.id);
  section.hidden = true;
  const place = element("div", "", { class: "panels" });
  section.append(title, place);
  document.querySelector("#groups").append(section);
  groups.set(name, { section, place });
  return groups.get(name);
}

function add(told) {
  for (const [target, points] of Object.entries(told.points)) {
    if (!kept.has(target)) kept.set(target, { times: [], series: {} });
    const { times, series } = kept.get(target);
    for (const [moment, figures] of points) {
      if (times.length && moment <= times[times.length - 1]) continue;
      for (const name of Object.keys(figures)) {
        if (!(name in series)) series[name] = times.map(() => null);
      }
      times.push(moment);
      for (const [name, values] of Object.entries(series)) {
        values.push(name in figures ? figures[name] : null);
      }
    }
    if (times.length > MOST_POINTS) {
      connect();
      return;
    }
  }
  last = told;
  draw();
}

function draw() {
  tellTargets();
  tellStragglers();
  const now = last.time;
  const first = Math.min(...[...kept.values()].map((one) => one.times[0] ?? now));
  const from = Math.max(now - Number(span.value), Math.min(first, now - LEAST_SECONDS));
  let isAnything = false;
  for (const plot of plots) {
    const { section, place } = groups.get(plot.panel.group);
    const figures = [...kept.values()].some(
      (history) => Object.keys(history.series).some((name) => plot.has(name)));
    if (!figures) continue;
    if (!plot.root.isConnected) {
      section.hidden = false;
      const after = [...place.children].find(
        (other) => plots.findIndex((one) => one.root === other) > plots.indexOf(plot));
      place.insertBefore(plot.root, after || null);
    }
    isAnything = plot.draw(kept, last.values, from, now) || isAnything;
  }
  for (const [target, slices] of Object.entries(last.slices)) {
    if (!gantts.has(target)) {
      const gantt = new Gantt(target);
      const { section, place } = group(GANTT_GROUP);
      section.hidden = false;
      place.prepend(gantt.root);
      gantts.set(target, gantt);
    }
    gantts.get(target).draw(slices);
  }
  document.querySelector("#nothing").hidden = isAnything;
}

function tellTargets() {
  const rows = last.targets.map((target) => {
    const row = element("tr", "", { "data-target": target.name });
    const name = element("th", target.name, { scope: "row", title: target.where });
    const state = element("td", target.state, { class: STATES[target.state] });
    const age = Math.max(last.time - target.since, 0);
    const since = element("td", `${clock(target.since)}, for ${time(age)}`);
    const says = element("td");
    if (target.error) says.append(element("span", target.error, { class: "away" }), " ");
    for (const [what, value] of Object.entries(target.facts)) {
      const fact = element("span", "", { class: "fact", "data-fact": what });
      fact.append(element("b", `${what} `), value);
      says.append(fact, " ");
    }
    row.append(name, element("td", target.kind || "?"), state, since, says);
    return row;
  });
  document.querySelector("#targets tbody").replaceChildren(...rows);
}

function tellStragglers() {
  document.querySelector("#slow").hidden = last.stragglers.length === 0;
  const rows = last.stragglers.map((one) => {
    const row = element("tr");
    row.append(
      element("th", one.what, { scope: "row" }), element("td", one.slowest),
      element("td", shown(one.value, one.unit)), element("td", shown(one.median, one.unit)),
      element("td", one.ratio.toFixed(2)),
    );
    return row;
  });
  document.querySelector("#stragglers tbody").replaceChildren(...rows);
}

span.addEventListener("change", () => last !== null && draw());
window.addEventListener("resize", () => last !== null && draw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const plot of plots) plot.forget();
  if (last !== null) draw();
});
connect();
