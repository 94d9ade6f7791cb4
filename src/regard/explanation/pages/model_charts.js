/* Charts of several models, of which each has a colour and a shape of its own, the same on the whole page. */
"use strict";

const SHAPES = ["circle", "square", "triangle", "diamond"];

/* What a model looks like; the style sheet takes one of the two colours, by day or by night. */
function lookOf(model, index, palette) {
  const [day, night] = palette[index % palette.length];
  const shape = SHAPES[(index + Math.floor(index / palette.length)) % SHAPES.length];
  return { index, name: model.name, shape, tint: `--day: ${day}; --night: ${night}` };
}

function shapePath(shape, x, y, size) {
  const outlines = {
    circle: () => `M${x - size} ${y}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0Z`,
    square: (half = size * 0.9) => `M${x - half} ${y - half}h${2 * half}v${2 * half}h${-2 * half}Z`,
    triangle: () => `M${x} ${y - size * 1.2}L${x + size * 1.15} ${y + size * 0.85}H${x - size * 1.15}Z`,
    diamond: (half = size * 1.25) => `M${x} ${y - half}L${x + half} ${y}L${x} ${y + half}L${x - half} ${y}Z`,
  };
  return outlines[shape]();
}

const makeMark = ({ shape }, x, y, size) => makeSvg("path", { class: "mark", d: shapePath(shape, x, y, size) });

/* The mark of a model as part of a text. */
const makeSwatch = (look) => makeSvg("svg", { class: "swatch tinted", style: look.tint, viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" },
  makeMark(look, 6, 6, 4.2));

const makeName = (look) => make("span", { class: "model-name" }, makeSwatch(look), make("bdi", {}, look.name));

/* Round ends about all numbers, never beyond 0 to 1, or 0 to 100. */
function commonAxis(numbers, count) {
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  if (!(high > low)) return axisAround(low, high);
  const step = roundStep((high - low) / count);
  const limit = low >= 0 && high <= 1 ? 1 : low >= 0 && high <= 100 ? 100 : Infinity;
  const ends = [Math.floor(low / step + 1e-9) * step, Math.min(limit, Math.ceil(high / step - 1e-9) * step)];
  return ends.map((end) => Number(end.toPrecision(12)));
}

/* Three digits and a letter: 812 k, 1.2 M; with zeros at the end where numbers stand below each other. */
function sayShort(value, isTrimmed = true) {
  const [size, letter] = [[1e9, " G"], [1e6, " M"], [1e3, " k"]].find(([least]) => Math.abs(value) >= least * 0.9995) ?? [1, ""];
  const digits = size === 1 ? String(Math.round(value)) : (value / size).toPrecision(3);
  return (isTrimmed ? String(Number(digits)) : digits) + letter;
}

/* Which models are shown, on all charts at once. */
class ModelChoice {
  constructor(looks) {
    Object.assign(this, { looks, hidden: new Set(), charts: [], legends: [] });
  }

  get shown() {
    return this.looks.filter((look) => !this.hidden.has(look.index));
  }

  toggle({ index }) {
    if (!this.hidden.delete(index)) this.hidden.add(index);
    this.update();
  }

  /* One by itself, or, where it is already, all of them again. */
  isolate({ index }) {
    const isAlone = this.shown.length === 1 && !this.hidden.has(index);
    this.hidden = new Set(isAlone ? [] : this.looks.map((look) => look.index).filter((other) => other !== index));
    this.update();
  }

  update() {
    this.charts.forEach((chart) => chart.draw());
    this.legends.flat().forEach(([button, { index }]) => button.setAttribute("aria-pressed", String(!this.hidden.has(index))));
  }

  legend() {
    const entries = this.looks.map((look) => [
      make("button", {
        type: "button", "aria-pressed": "true", title: "Click to hide or show, double-click to see it alone",
        onclick: () => this.toggle(look), ondblclick: () => this.isolate(look),
        onpointerenter: () => this.stress(look), onpointerleave: () => this.stress(null),
      }, makeName(look)),
      look,
    ]);
    this.legends.push(entries);
    return make("div", { class: "model-legend", role: "group", "aria-label": "models shown" }, ...entries.map(([button]) => button));
  }

  stress(look) {
    for (const chart of this.charts) {
      chart.root.querySelectorAll("g.line").forEach((line) =>
        line.classList.toggle("faded", look !== null && line.dataset.model !== String(look.index)));
    }
  }
}

/* Lines of models over one axis.

   `lines` gives, for a look, its lines: lists of {x, y, low, high}. `axis` is {kind, words, say, ticks}, where the
   kind is "linear", "logarithmic" or "bands"; in bands x counts from 0, and `ticks` are their names. */
class ModelChart {
  constructor(root, choice, { height = 320, axis, lines, words, say, isLogarithmic = false, isLowFirst = false }) {
    Object.assign(this, { choice, height, axis, lines, words, say, isLogarithmic, isLowFirst });
    this.root = make("div", { class: "chart model-chart" });
    this.tip = make("div", { class: "chart-tip", hidden: true });
    root.append(this.root);
    choice.charts.push(this);
    onWidthChange(this.root, () => this.draw());
    this.root.addEventListener("pointermove", (event) => this.hover(event));
    this.root.addEventListener("pointerleave", () => this.mark(null));
  }

  draw() {
    const width = this.root.clientWidth;
    if (!width) return;
    this.drawn = this.choice.shown.flatMap((look) => this.lines(look)
      .map((points) => ({ look, points: points.filter(({ y }) => isNumber(y) && (!this.isLogarithmic || y > 0)) }))
      .filter(({ points }) => points.length));
    this.frame = { left: 46, right: width - 14, top: 12, bottom: this.height - 42 };
    this.svg = makeSvg("svg", { viewBox: `0 0 ${width} ${this.height}`, height: this.height, role: "img", "aria-label": `${this.words} by ${this.axis.words}` });
    this.cursor = makeSvg("g");
    if (this.drawn.length) {
      this.setScales();
      this.drawAxes();
      this.drawn.forEach((line) => this.drawLine(line));
    } else {
      this.svg.append(makeSvg("text", { x: width / 2, y: this.height / 2, "text-anchor": "middle" }, "nothing to show"));
    }
    this.svg.append(this.cursor);
    this.tip.hidden = true;
    this.root.replaceChildren(this.svg, this.tip);
  }

  setScales() {
    const { left, right, top, bottom } = this.frame;
    const points = this.drawn.flatMap((line) => line.points);
    const xs = points.map(({ x }) => x);
    const log = (value) => Math.log(value);
    const same = (value) => value;
    const ends = { linear: [0, Math.max(...xs)], logarithmic: [Math.min(...xs), Math.max(...xs)], bands: [-0.5, this.axis.ticks?.length - 0.5] };
    const scale = this.axis.kind === "logarithmic" ? log : same;
    let [first, last] = ends[this.axis.kind].map(scale);
    if (this.axis.kind === "logarithmic") [first, last] = [first - (last - first || 1) * 0.04, last + (last - first || 1) * 0.04];
    this.x = (value) => left + ((scale(value) - first) / (last - first || 1)) * (right - left);
    const ys = points.flatMap(({ y, low, high }) => [y, low, high].filter(isNumber));
    let [lowest, highest] = this.isLogarithmic ? [Math.min(...ys), Math.max(...ys)] : commonAxis(ys, 5);
    if (lowest === highest) [lowest, highest] = this.isLogarithmic ? [lowest / 2, highest * 2] : [lowest - 1, highest + 1];
    const rise = this.isLogarithmic ? log : same;
    this.y = (value) => top + ((rise(highest) - rise(value)) / (rise(highest) - rise(lowest))) * (bottom - top);
    this.ticks = this.isLogarithmic && highest > 8 * lowest ? logarithmicTicks(lowest, highest) : linearTicks(lowest, highest, 5);
  }

  drawAxes() {
    const { left, right, bottom } = this.frame;
    for (const tick of this.ticks) {
      this.svg.append(
        makeSvg("line", { class: "grid", x1: left, x2: right, y1: this.y(tick), y2: this.y(tick) }),
        makeSvg("text", { x: left - 8, y: this.y(tick), "text-anchor": "end", "dominant-baseline": "central" }, sayNumber(tick)));
    }
    let taken = -Infinity;
    for (const [place, words] of this.namedPlaces()) {
      const half = words.length * 3.1 + 5;
      if (place - half < taken) continue;
      taken = place + half;
      this.svg.append(makeSvg("text", { x: place, y: bottom + 18, "text-anchor": "middle" }, words));
    }
    this.svg.append(makeSvg("text", { class: "axis-name", x: right, y: bottom + 36, "text-anchor": "end" }, this.axis.words));
  }

  namedPlaces() {
    const { kind, ticks, say } = this.axis;
    if (kind === "bands") return ticks.map((words, band) => [this.x(band), words]);
    const xs = this.drawn.flatMap(({ points }) => points.map(({ x }) => x));
    const values = kind === "logarithmic" ? [...new Set(xs)].sort((a, b) => a - b)
      : linearTicks(0, Math.max(...xs), Math.max(2, (this.frame.right - this.frame.left) / 90));
    return values.map((value) => [this.x(value), say(value)]);
  }

  /* Whiskers of many models at one place would hide each other, so they stand side by side. */
  shift(look) {
    if (this.axis.kind === "linear") return 0;
    const shown = this.choice.shown;
    const room = this.axis.kind === "bands" ? (this.x(1) - this.x(0)) * 0.66 : 26;
    return (shown.indexOf(look) - (shown.length - 1) / 2) * Math.min(11, room / shown.length);
  }

  drawLine({ look, points }) {
    const x = (point) => this.x(point.x) + this.shift(look);
    const places = points.map((point) => `${x(point).toFixed(1)} ${this.y(point.y).toFixed(1)}`);
    const group = makeSvg("g", { class: "line tinted", style: look.tint, "data-model": look.index });
    for (const point of points.filter(({ low, high }) => isNumber(low) && isNumber(high))) {
      group.append(makeSvg("line", { class: "whisker", x1: x(point), x2: x(point), y1: this.y(point.low), y2: this.y(point.high) }));
    }
    group.append(makeSvg("path", { class: "curve", d: `M${places.join("L")}` }));
    const marked = this.axis.kind === "linear" ? points.slice(-1) : points;
    group.append(...marked.map((point) => makeMark(look, x(point), this.y(point.y), 4)));
    this.svg.append(group);
  }

  hover(event) {
    if (!this.drawn?.length) return;
    const x = event.clientX - this.root.getBoundingClientRect().left;
    const xs = this.drawn.flatMap(({ points }) => points.map((point) => point.x));
    this.mark(xs.reduce((a, b) => (Math.abs(this.x(b) - x) < Math.abs(this.x(a) - x) ? b : a)));
  }

  /* A dashed line at a place, and beside it what each model has there; nothing for null. */
  mark(place) {
    this.cursor.replaceChildren();
    this.tip.hidden = place === null;
    if (place === null) return;
    const { left, right, top, bottom } = this.frame;
    const at = this.x(place);
    this.cursor.append(makeSvg("line", { class: "cursor", x1: at, x2: at, y1: top, y2: bottom }));
    const found = this.drawn.map(({ look, points }) => [look, this.nearest(points, place)]).filter(([, point]) => point);
    const mean = (points) => points.reduce((sum, { y }) => sum + y, 0) / points.length;
    const rows = this.choice.shown.map((look) => [look, found.filter(([other]) => other === look).map(([, point]) => point)])
      .filter(([, points]) => points.length)
      .sort(([, a], [, b]) => (this.isLowFirst ? mean(a) - mean(b) : mean(b) - mean(a)));
    this.tip.replaceChildren(make("b", {}, this.axis.sayPlace?.(place) ?? this.axis.say(place)),
      ...rows.flatMap(([look, points]) => [make("span", {}, makeName(look)), make("em", {}, this.say(points))]));
    const isLate = at > (left + right) / 2;
    const start = isLate ? at - this.tip.offsetWidth - 14 : at + 14;
    this.tip.style.left = `${Math.max(0, Math.min(start, this.root.clientWidth - this.tip.offsetWidth))}px`;
  }

  /* The point of a line at a place or next to it; none where the line ends long before. */
  nearest(points, place) {
    const point = points.reduce((a, b) => (Math.abs(b.x - place) < Math.abs(a.x - place) ? b : a));
    const reach = this.axis.kind === "linear" ? (this.frame.right - this.frame.left) * 0.05 : 0.5;
    return Math.abs(this.x(point.x) - this.x(place)) <= reach ? point : null;
  }
}
