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
  figure.plot = new uPlot(options(figure, chart, log, shown), points(chart), place);
  enableKeys(place);
}

/** Return whether the x values are names, such as those of cases. */
function named(chart) {
  return typeof chart.x[0] === "string";
}

function points(chart) {
  const x = named(chart) ? chart.x.map((_, number) => number) : chart.x;
  return [x, ...chart.series.map((each) => each.values.map((value) => value && value.value))];
}

function options(figure, chart, log, shown) {
  const width = figure.querySelector(".plot").clientWidth;
  const text = { stroke: ink("quiet"), font: "12px system-ui", grid: { stroke: ink("grid"), width: 1 }, ticks: { stroke: ink("grid"), width: 1 } };
  const across = { ...text, label: chart.x_label || null, space: 60 };
  if (named(chart)) {
    const longest = Math.max(...chart.x.map((name) => name.length));
    Object.assign(across, {
      splits: () => chart.x.map((_, number) => number),
      values: () => chart.x,
      rotate: -90,
      size: Math.min(24 + 6.6 * longest, 270),
      font: "11px system-ui",
    });
  }
  const span = named(chart) && { range: [-0.5, chart.x.length - 0.5] };
  return {
    width,
    height: 280 + (named(chart) ? across.size : 40),
    scales: { x: { time: false, distr: chart.log_x ? 3 : 1, log: 2, ...span }, y: { distr: log ? 3 : 1, range: (plot) => reach(plot, chart, log) } },
    axes: [across, { ...text, label: chart.y_label, size: 64, values: (_, ticks) => ticks.map(number) }],
    series: [xSeries(figure, chart), ...chart.series.map((each, at) => series(figure, chart, each, shown[at + 1]))],
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
  const values = seen.flatMap((each) => each.values).filter((value) => value);
  if (!values.length) return [1, 10];
  const low = Math.min(...values.map((value) => value.low));
  const high = Math.max(...values.map((value) => value.high));
  return log ? uPlot.rangeLog(low, high, 10, false) : uPlot.rangeNum(low, high, 0.1, true);
}

function xSeries(figure, chart) {
  const text = (value) => (named(chart) ? chart.x[value] : number(value));
  return { label: chart.x_label.split(" (")[0] || figure.dataset.x, value: (_, value) => (value === null ? "" : text(value)) };
}

function series(figure, chart, each, show) {
  const mine = figure.dataset.mine.split(" ");
  const others = mine[0] && !mine.includes(each.name);
  const hue = data.hues[each.name]; // a solution has the same in every chart
  const stroke = ink(others ? "other" : hue === undefined ? "quiet" : `hue${hue % HUES}`);
  return {
    label: each.name,
    show: show ?? true,
    stroke,
    width: mine.includes(each.name) ? 3 : 1.5,
    dash: each.peer ? [5, 4] : undefined,
    paths: named(chart) ? () => null : undefined, // named cases have no order: dots alone
    points: { show: true, size: others ? 4 : 7, fill: each.peer ? ink("paper") : stroke },
    value: (_, value) => (value === null ? "" : number(value)),
  };
}

/** Draw the 95 % interval of each value. */
function whiskers(plot, at, { values }) {
  const { ctx } = plot;
  ctx.save();
  ctx.strokeStyle = plot.series[at].stroke(plot, at);
  ctx.beginPath();
  values.forEach((value, i) => {
    if (!value) return;
    const x = plot.valToPos(plot.data[0][i], "x", true);
    ctx.moveTo(x, plot.valToPos(value.low, "y", true));
    ctx.lineTo(x, plot.valToPos(value.high, "y", true));
  });
  ctx.lineWidth = 2;
  ctx.stroke();
  ctx.restore();
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
