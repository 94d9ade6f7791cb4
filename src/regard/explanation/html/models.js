/* Models, each with a color and a marker of its own, the same on the whole page; and charts of them. */
"use strict";

const SHAPES = ["circle", "square", "triangle", "diamond"];

/* The appearance of a model; the style sheet takes one of the two colors, for a light or a dark page. */
function styleOf(model, index, palette) {
  const [light, dark] = palette[index % palette.length];
  const shape = SHAPES[(index + Math.floor(index / palette.length)) % SHAPES.length];
  return { index, name: model.name, shape, tint: `--light: ${light}; --dark: ${dark}` };
}

const makeName = ({ name, shape, tint }) => make("span", { class: "model-name" },
  makeSvg("svg", { class: "swatch tinted", style: tint, viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" }, makeMark(shape, 6, 6, 4.2)),
  make("bdi", {}, name));

/* Three digits and a letter: 812 k, 1.2 M. */
function formatCount(value) {
  const [size, letter] = [[1e9, " G"], [1e6, " M"], [1e3, " k"]].find(([least]) => Math.abs(value) >= least * 0.9995) ?? [1, ""];
  return String(Number(size === 1 ? Math.round(value) : (value / size).toPrecision(3))) + letter;
}

/* Which models are shown, on all charts at once. */
class ModelChoice {
  constructor(styles) {
    Object.assign(this, { styles, hidden: new Set(), charts: [], legends: [] });
  }

  get shown() {
    return this.styles.filter(({ index }) => !this.hidden.has(index));
  }

  toggle({ index }) {
    if (!this.hidden.delete(index)) this.hidden.add(index);
    this.update();
  }

  /* Shows one model alone or, where it is alone already, all of them again. */
  isolate({ index }) {
    const isAlone = this.shown.length === 1 && !this.hidden.has(index);
    this.hidden = new Set(isAlone ? [] : this.styles.map((style) => style.index).filter((other) => other !== index));
    this.update();
  }

  update() {
    this.charts.forEach((chart) => chart.draw());
    this.legends.flat().forEach(([button, { index }]) => button.setAttribute("aria-pressed", String(!this.hidden.has(index))));
  }

  legend() {
    const entries = this.styles.map((style) => [
      make("button", {
        type: "button", "aria-pressed": "true", title: "Click to hide or show; double-click to show only this model",
        onclick: () => this.toggle(style), ondblclick: () => this.isolate(style),
        onpointerenter: () => this.emphasize(style), onpointerleave: () => this.emphasize(null),
      }, makeName(style)),
      style,
    ]);
    this.legends.push(entries);
    return make("div", { class: "model-legend", role: "group", "aria-label": "models shown" }, ...entries.map(([button]) => button));
  }

  emphasize(style) {
    for (const { root } of this.charts) {
      root.querySelectorAll("g.line").forEach((line) =>
        line.classList.toggle("faded", style !== null && line.dataset.model !== String(style.index)));
    }
  }

  /* A chart with the lines of each model; `linesOf(style)` returns lists of points, `format(points)` a text. */
  addChart(root, { linesOf, format, isLowFirst = false, ...options }) {
    const chart = new LineChart(root, {
      ...options,
      lines: () => this.shown.flatMap((style) => linesOf(style).map((points) => ({
        name: "tinted", style: style.tint, model: style.index, shape: style.shape, points, shift: this.shift(chart, style),
        marks: chart.axis.kind === "linear" ? "last" : "all",
      }))),
      describe: (x) => {
        const found = chart.pointsAt(x);
        const mean = (points) => points.reduce((sum, { y }) => sum + y, 0) / points.length;
        return this.shown.map((style) => [style, found.filter(([{ model }]) => model === style.index).map(([, point]) => point)])
          .filter(([, points]) => points.length)
          .sort(([, a], [, b]) => (isLowFirst ? mean(a) - mean(b) : mean(b) - mean(a)))
          .map(([style, points]) => [makeName(style), format(points)]);
      },
    });
    this.charts.push(chart);
    return chart;
  }

  /* Whiskers of several models at one place would hide each other, so they are drawn side by side. */
  shift(chart, style) {
    if (chart.axis.kind === "linear") return 0;
    const { left, right } = chart.frame;
    const room = chart.axis.kind === "ranges" ? ((right - left) / chart.axis.ticks.length) * 0.66 : 26;
    return (this.shown.indexOf(style) - (this.shown.length - 1) / 2) * Math.min(11, room / this.shown.length);
  }
}
