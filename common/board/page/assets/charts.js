"use strict";
/* Draws a chart's data with uPlot: intervals as whiskers, a legend that hides series, two scales. */

const HUES = 12;

/** Return a colour of the style sheet as the browser shows it now. */
function ink(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

/** Draw one figure, anew where it has been drawn. */
function drawChart(figure, chart) {
  const place = figure.querySelector(".plot");
  const log = figure.dataset.scale ? figure.dataset.scale === "log" : chart.log_y;
  const button = figure.querySelector("[data-scale]");
  button.setAttribute("aria-pressed", log);
  button.onclick = () => {
    figure.dataset.scale = log ? "linear" : "log";
    drawChart(figure, chart);
  };
  const shown = figure.plot ? figure.plot.series.map((each) => each.show) : [];
  place.replaceChildren();
  figure.plot = new uPlot(options(figure, chart, log, shown), data(chart), place);
  enableKeys(place);
}

function data(chart) {
  const x = chart.names ? chart.names.map((_, number) => number) : chart.x;
  return [x, ...chart.series.map((each) => each.value)];
}

function options(figure, chart, log, shown) {
  const width = figure.querySelector(".plot").clientWidth;
  const text = { stroke: ink("quiet"), font: "12px system-ui", grid: { stroke: ink("grid"), width: 1 }, ticks: { stroke: ink("grid"), width: 1 } };
  const across = { ...text, label: chart.x_label || null, space: 60 };
  if (chart.names) {
    const longest = Math.max(...chart.names.map((name) => name.length));
    Object.assign(across, {
      splits: () => chart.names.map((_, number) => number),
      values: () => chart.names,
      rotate: -90,
      size: Math.min(24 + 6.6 * longest, 270),
      font: "11px system-ui",
    });
  }
  if (chart.dates) Object.assign(across, { values: (_, ticks) => ticks.map(day), space: 130 });
  const span = chart.names && { range: [-0.5, chart.names.length - 0.5] };
  return {
    width,
    padding: chart.dates ? [null, 60, null, null] : undefined, // half of the last date
    height: 280 + (chart.names ? across.size : 40),
    scales: { x: { time: chart.dates, distr: chart.log_x ? 3 : 1, log: 2, ...span }, y: { distr: log ? 3 : 1, range: (plot) => reach(plot, chart, log) } },
    axes: [across, { ...text, label: chart.y_label, size: 64, values: (_, ticks) => ticks.map(number) }],
    series: [xSeries(figure, chart), ...chart.series.map((each, at) => series(figure, chart, each, at, shown[at + 1]))],
    hooks: { drawSeries: [(plot, at) => at && whiskers(plot, at, chart.series[at - 1])] },
    cursor: { points: { size: 9 }, focus: { prox: 24 } },
    focus: { alpha: 0.2 },
    legend: {
      live: true,
      markers: { fill: (plot, at) => (chart.series[at - 1]?.peer ? "transparent" : plot.series[at].stroke(plot, at)) },
    },
  };
}

/** Return the range of values that holds the intervals of the series that are shown. */
function reach(plot, chart, log) {
  const seen = chart.series.filter((_, at) => plot.series[at + 1].show);
  const ends = (side) => seen.flatMap((each) => each[side]).filter((value) => value !== null);
  if (!ends("low").length) return [1, 10];
  const [low, high] = [Math.min(...ends("low")), Math.max(...ends("high"))];
  return log ? uPlot.rangeLog(low, high, 10, false) : uPlot.rangeNum(low, high, 0.1, true);
}

function xSeries(figure, chart) {
  const text = (value) => {
    if (chart.names) return chart.names[value];
    return chart.dates ? day(value) : number(value);
  };
  return { label: chart.x_label.split(" (")[0] || figure.dataset.x, value: (_, value) => (value === null ? "" : text(value)) };
}

function series(figure, chart, each, at, show) {
  const mine = figure.dataset.mine.split(" ");
  const others = mine[0] && !mine.includes(each.name);
  const stroke = others ? ink("other") : ink(each.hue === null && each.peer ? "quiet" : `hue${(each.hue ?? at) % HUES}`);
  return {
    label: each.name,
    show: show ?? true,
    stroke,
    width: mine.includes(each.name) ? 3 : 1.5,
    dash: each.peer ? [5, 4] : undefined,
    paths: chart.names ? () => null : undefined, // named cases have no order: dots alone
    points: { show: true, size: others ? 4 : 7, fill: each.peer ? ink("paper") : stroke },
    value: (_, value) => (value === null ? "" : number(value)),
  };
}

/** Draw the 95 % interval of each value. */
function whiskers(plot, at, { low, high }) {
  const { ctx } = plot;
  ctx.save();
  ctx.strokeStyle = plot.series[at].stroke(plot, at);
  ctx.beginPath();
  plot.data[0].forEach((value, i) => {
    if (low[i] === null) return;
    const x = plot.valToPos(value, "x", true);
    ctx.moveTo(x, plot.valToPos(low[i], "y", true));
    ctx.lineTo(x, plot.valToPos(high[i], "y", true));
  });
  ctx.lineWidth = 2;
  ctx.stroke();
  ctx.restore();
}

/** Return a time in seconds as `2026-11-21 08:29`, in UTC as runs are named. */
function day(seconds) {
  return new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ");
}

function number(value) {
  return value === null || value === undefined ? "–" : Number(value.toPrecision(3)).toLocaleString("en");
}

/** Let the keyboard hide and show a series, as a click on its name does. */
function enableKeys(place) {
  for (const name of place.querySelectorAll(".u-legend .u-series:not(:first-child) th")) {
    name.tabIndex = 0;
    name.setAttribute("role", "button");
    name.onkeydown = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      name.click();
    };
  }
}
