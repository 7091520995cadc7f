// What the pages do beyond reading: draw the histogram, take a selection, rest in a hidden tab.
"use strict";
(() => {
  document.documentElement.classList.add("scripted");

  const holder = () => document.querySelector("[data-load]");
  const seconds = (micros) => micros / 1e6;
  const field = (at) => new Date(at * 1000).toISOString().slice(0, 19);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (count) => count.toLocaleString("en").replaceAll(",", "\u202f");
  // Swedish writes an instant as ISO 8601 does.
  const shown = (at, zone) => new Date(at * 1000).toLocaleString("sv", { timeZone: zone }).slice(0, 16);
  const edgesOf = (load) => load.edges.map(seconds);

  function dataOf(load) {
    return [edgesOf(load).slice(0, -1), load.counts];
  }

  function selected(load, from, to) {
    const edges = edgesOf(load);
    let sum = 0, mark = "";
    load.counts.forEach((count, index) => {
      const at = edges[index];
      if (at >= from && at < to) {
        sum += count;
        if (load.marks[index] !== "exact") mark = load.marks[index] === "at_least" ? "≥ " : "≈ ";
      }
    });
    return mark + number(sum);
  }

  function take(chart, load) {
    const form = document.getElementById("selection");
    if (!form || !chart.select.width) return;
    const edges = edgesOf(load);
    const left = chart.posToVal(chart.select.left, "x");
    const right = chart.posToVal(chart.select.left + chart.select.width, "x");
    // Whole buckets: only their counts are known.
    const from = edges.findLast((edge) => edge <= left) ?? edges[0];
    const to = edges.find((edge) => edge >= right) ?? edges.at(-1);
    form.elements.due_from.value = field(from);
    form.elements.due_before.value = field(to);
    form.querySelector("output").value =
      `${selected(load, from, to)} timeouts from ${shown(from, load.zone)} to ${shown(to, load.zone)}`;
  }

  function draw(place) {
    let load = JSON.parse(holder().dataset.load);
    const clock = (at) => {
      const text = shown(at, load.zone), edges = edgesOf(load);
      return edges[1] - edges[0] > 80000 || text.endsWith("00:00") ? text.slice(5, 10) : text.slice(11);
    };
    const axis = {
      stroke: () => colour("--soft"), grid: { stroke: () => colour("--line"), width: 1 },
      ticks: { stroke: () => colour("--line"), width: 1 },
    };
    const chart = new uPlot({
      width: place.clientWidth - 8, height: place.clientHeight - 10,
      tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), load.zone),
      legend: { show: false },
      cursor: { y: false, drag: { x: "brush" in place.dataset, y: false, setScale: false } },
      scales: { x: { range: () => [seconds(load.edges[0]), seconds(load.edges.at(-1))] }, y: { range: (_chart, _low, high) => [0, Math.max(high, 4) * 1.05] } },
      series: [{}, {
        label: "timeouts", stroke: () => colour("--bar"), fill: () => colour("--bar"),
        paths: uPlot.paths.bars({ size: [0.9, 40], align: 1 }), points: { show: false },
      }],
      axes: [{ ...axis, values: (_chart, ticks) => ticks.map(clock) }, { ...axis, size: 56, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6],
        values: (_chart, ticks) => ticks.map(number) }],
      hooks: { setSelect: [(one) => take(one, load)] },
    }, dataOf(load), place);
    new ResizeObserver(() => chart.setSize({
      width: place.clientWidth - 8, height: place.clientHeight - 10,
    })).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.redraw());
    return () => {
      if (!holder()) return;
      load = JSON.parse(holder().dataset.load);
      chart.setData(dataOf(load));
    };
  }

  function charts() {
    const place = document.querySelector("[data-chart]");
    if (!place || typeof uPlot === "undefined") return;
    let renew = holder() ? draw(place) : null;
    document.body.addEventListener("htmx:afterSwap", () => {
      if (renew) renew();
      else if (holder()) renew = draw(place);
    });
  }

  // Browsers keep few connections to a host open: a tab that is not seen must not hold one.
  function rest() {
    const stream = document.querySelector("[sse-connect]");
    if (!stream || typeof htmx === "undefined") return;
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) {
        htmx.trigger(stream, "htmx:beforeCleanupElement");
        return;
      }
      htmx.trigger(stream, "htmx:afterProcessNode");
      stream.querySelectorAll("[sse-swap]").forEach((each) => htmx.trigger(each, "htmx:afterProcessNode"));
    });
  }

  // A table that a person has opened stays open in a region that renews itself.
  if (typeof Idiomorph !== "undefined") {
    Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name) => name !== "open";
  }
  charts();
  rest();
})();
