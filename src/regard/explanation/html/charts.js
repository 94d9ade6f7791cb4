/* Line charts, and a number with its interval. */
"use strict";

/* The round step (1, 2 or 5 times a power of ten) that is nearest above `rough`. */
function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999);
}

function linearTicks(low, high, count) {
  const step = roundStep((high - low) / count || 1);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9); tick * step <= high * (1 + 1e-9); tick += 1) ticks.push(tick * step + 0);
  return ticks;
}

function logarithmicTicks(low, high) {
  const factors = high / low > 3000 ? [1] : high / low > 20 ? [1, 3] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const factor of factors) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks.length > 1 ? ticks : [low, high];
}

/* Round ends of an axis for an interval, within 0 to 1 or 0 to 100; from 0 for a single point. */
function axisAround(low, high) {
  const size = Math.abs(high);
  const limit = low >= 0 && high <= 1 ? 1 : low >= 0 && high <= 100 ? 100 : Infinity;
  const whole = limit === 1 ? 1 : roundStep(size);
  const step = high > low ? roundStep(Math.max((high - low) * 1.5, size * 1e-3)) : whole;
  let [start, end] = [Math.floor(low / step) * step, Math.ceil(high / step) * step];
  if (start === end && end >= limit) start -= step;
  else if (start === end) end += step;
  return [low >= 0 ? Math.max(0, start) : start, Math.min(limit, end)].map((value) => Number(value.toPrecision(12)));
}

/* Round ends of an axis for several numbers, within 0 to 1 or 0 to 100. */
function commonAxis(numbers, count) {
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  if (!(high > low)) return axisAround(low, high);
  const step = roundStep((high - low) / count);
  const limit = low >= 0 && high <= 1 ? 1 : low >= 0 && high <= 100 ? 100 : Infinity;
  const ends = [Math.floor(low / step + 1e-9) * step, Math.min(limit, Math.ceil(high / step - 1e-9) * step)];
  return ends.map((end) => Number(end.toPrecision(12)));
}

const lowestOf = (points) => points.reduce((a, b) => (b.y < a.y ? b : a));

function shapePath(shape, x, y, size) {
  const outlines = {
    circle: () => `M${x - size} ${y}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0Z`,
    square: (half = size * 0.9) => `M${x - half} ${y - half}h${2 * half}v${2 * half}h${-2 * half}Z`,
    triangle: () => `M${x} ${y - size * 1.2}L${x + size * 1.15} ${y + size * 0.85}H${x - size * 1.15}Z`,
    diamond: (half = size * 1.25) => `M${x} ${y - half}L${x + half} ${y}L${x} ${y + half}L${x - half} ${y}Z`,
  };
  return outlines[shape]();
}

const makeMark = (shape, x, y, size) => makeSvg("path", { class: "mark", d: shapePath(shape, x, y, size) });

/* Lines over one axis.

   `axis` is {kind, name, format, formatPlace, ticks, end}: the kind is "linear", "logarithmic" or "ranges"; in ranges x
   counts from 0, and `ticks` are their names. A linear axis reaches `end` at least, so that charts align. `lines()`
   returns {name, style, points, marks, shape, shift, ringAt}: points are {x, y, low, high}, marks "all", "last" or
   "none", and a ring is drawn around the point with x `ringAt`.
   `describe(x)` returns [name, text] rows for the tip at a place. Charts in `linked` show the same cursor. */
class LineChart {
  constructor(root, options) {
    Object.assign(this, { height: 320, numTicks: 5, isLogarithmic: false, startsAtZero: false, hasAxis: true, linked: [] }, options);
    this.root = make("div", { class: "chart" });
    this.tip = make("div", { class: "chart-tip", hidden: true });
    root.append(this.root);
    onWidthChange(this.root, () => this.draw());
    this.root.addEventListener("pointermove", (event) => this.hover(event));
    this.root.addEventListener("pointerleave", () => this.point(null));
  }

  draw() {
    const width = this.root.clientWidth;
    if (!width) return;
    this.frame = { left: 46, right: width - 14, top: 12, bottom: this.height - (this.hasAxis ? 42 : 6) };
    const isShown = ({ y }) => isNumber(y) && (!this.isLogarithmic || y > 0);
    this.drawn = this.lines().map((line) => ({ ...line, points: line.points.filter(isShown) })).filter(({ points }) => points.length);
    this.svg = makeSvg("svg", { viewBox: `0 0 ${width} ${this.height}`, height: this.height, role: "img", "aria-label": `${this.name} by ${this.axis.name}` });
    this.cursor = makeSvg("g");
    if (this.drawn.length) {
      this.setScales();
      this.drawAxes();
      this.drawn.forEach((line) => this.svg.append(this.drawLine(line)));
    } else {
      this.svg.append(makeSvg("text", { x: width / 2, y: this.height / 2, "text-anchor": "middle" }, "no data"));
    }
    this.svg.append(this.cursor);
    this.tip.hidden = true;
    this.root.replaceChildren(this.svg, this.tip);
  }

  setScales() {
    const { left, right, top, bottom } = this.frame;
    const points = this.drawn.flatMap((line) => line.points);
    /* Not Math.min(...values): a long run has more points than a call may have arguments. */
    const range = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
    const [least, most] = range(points.map(({ x }) => x));
    const log = (value) => Math.log(value);
    const same = (value) => value;
    const ends = { linear: [0, Math.max(most, this.axis.end ?? 0)], logarithmic: [least, most], ranges: [-0.5, this.axis.ticks?.length - 0.5] };
    const scale = this.axis.kind === "logarithmic" ? log : same;
    let [first, last] = ends[this.axis.kind].map(scale);
    if (this.axis.kind === "logarithmic") [first, last] = [first - (last - first || 1) * 0.04, last + (last - first || 1) * 0.04];
    this.x = (value) => left + ((scale(value) - first) / (last - first || 1)) * (right - left);
    let [lowest, highest] = range(points.flatMap(({ y, low, high }) => [y, low, high].filter(isNumber)));
    if (!this.isLogarithmic) [lowest, highest] = this.startsAtZero ? [Math.min(0, lowest), highest] : commonAxis([lowest, highest], this.numTicks);
    if (lowest === highest) [lowest, highest] = this.isLogarithmic ? [lowest / 2, highest * 2] : [lowest - (lowest ? 1 : 0), highest + 1];
    const rise = this.isLogarithmic ? log : same;
    this.y = (value) => top + ((rise(highest) - rise(value)) / (rise(highest) - rise(lowest))) * (bottom - top);
    this.ticks = this.isLogarithmic && highest > 8 * lowest ? logarithmicTicks(lowest, highest) : linearTicks(lowest, highest, this.numTicks);
    if (this.ticks.length < 2) this.ticks = [lowest, highest];
  }

  drawAxes() {
    const { left, right, bottom } = this.frame;
    for (const tick of this.ticks) {
      this.svg.append(
        makeSvg("line", { class: "grid", x1: left, x2: right, y1: this.y(tick), y2: this.y(tick) }),
        makeSvg("text", { x: left - 8, y: this.y(tick), "text-anchor": "end", "dominant-baseline": "central" }, formatNumber(tick)));
    }
    if (!this.hasAxis) return;
    let taken = -Infinity;
    for (const [place, words] of this.namedPlaces()) {
      const half = words.length * 3.1 + 5;
      if (place - half < taken) continue;
      taken = place + half;
      this.svg.append(makeSvg("text", { x: place, y: bottom + 18, "text-anchor": "middle" }, words));
    }
    this.svg.append(makeSvg("text", { class: "axis-name", x: right, y: bottom + 36, "text-anchor": "end" }, this.axis.name));
  }

  namedPlaces() {
    const { kind, ticks, format } = this.axis;
    if (kind === "ranges") return ticks.map((words, number) => [this.x(number), words]);
    const xs = [...new Set(this.drawn.flatMap(({ points }) => points.map(({ x }) => x)))].sort((a, b) => a - b);
    const values = kind === "logarithmic" ? xs : linearTicks(0, xs.at(-1), Math.max(2, (this.frame.right - this.frame.left) / 90));
    return values.map((value) => [this.x(value), format(value)]);
  }

  drawLine({ name, style, points, marks = "none", ringAt = null, shape = "circle", shift = 0, model = null }) {
    /* More points than pixels add nothing that can be seen. */
    const stride = Math.ceil(points.length / 3000);
    const kept = points.filter((_, i) => i % stride === 0 || i === points.length - 1);
    const x = (point) => this.x(point.x) + shift;
    const group = makeSvg("g", { class: `line ${name}`, style, "data-model": model });
    for (const point of points.filter(({ low, high }) => isNumber(low) && isNumber(high))) {
      group.append(makeSvg("line", { class: "whisker", x1: x(point), x2: x(point), y1: this.y(point.low), y2: this.y(point.high) }));
    }
    group.append(makeSvg("path", { class: "curve", d: `M${kept.map((point) => `${x(point).toFixed(1)} ${this.y(point.y).toFixed(1)}`).join("L")}` }));
    const marked = marks === "all" ? points : marks === "last" ? points.slice(-1) : [];
    group.append(...marked.map((point) => makeMark(shape, x(point), this.y(point.y), 4)));
    const ringed = points.find((point) => point.x === ringAt);
    if (ringed) group.append(makeSvg("circle", { class: "ring", cx: x(ringed), cy: this.y(ringed.y), r: 6.5 }));
    return group;
  }

  hover(event) {
    if (!this.drawn?.length) return;
    const place = event.clientX - this.root.getBoundingClientRect().left;
    const xs = this.drawn.flatMap(({ points }) => points.map((point) => point.x));
    this.point(xs.reduce((a, b) => (Math.abs(this.x(b) - place) < Math.abs(this.x(a) - place) ? b : a)));
  }

  /* A dashed line at x, here and on linked charts, and beside it a table; nothing for null. */
  point(x) {
    [this, ...this.linked].forEach((chart) => chart.mark(x));
    const [first] = [this, ...this.linked].filter(({ describe }) => describe);
    first.tip.hidden = x === null;
    if (x === null) return;
    const { left, right } = first.frame;
    first.tip.replaceChildren(make("b", {}, first.axis.formatPlace(x)),
      ...first.describe(x).flatMap(([name, text]) => (text === null ? [make("b", {}, name)] : [make("span", {}, name), make("em", {}, text)])));
    const place = first.x(x);
    const start = place > (left + right) / 2 ? place - first.tip.offsetWidth - 14 : place + 14;
    first.tip.style.left = `${Math.max(0, Math.min(start, first.root.clientWidth - first.tip.offsetWidth))}px`;
  }

  mark(x) {
    this.cursor?.replaceChildren();
    if (x === null || !this.drawn?.length) return;
    const [at, { top, bottom }] = [this.x(x), this.frame];
    this.cursor.append(makeSvg("line", { class: "cursor", x1: at, x2: at, y1: top, y2: bottom }));
  }

  /* The points at a place, or nearest to it, of the lines that are drawn there: pairs of line and point. */
  pointsAt(x) {
    const reach = this.axis.kind === "linear" ? (this.frame.right - this.frame.left) * 0.05 : 0.5;
    return this.drawn
      .map((line) => [line, line.points.reduce((a, b) => (Math.abs(b.x - x) < Math.abs(a.x - x) ? b : a))])
      .filter(([, point]) => Math.abs(this.x(point.x) - this.x(x)) <= reach);
  }
}

function intervalBar({ value, interval }, width, isMain) {
  const [low, high] = interval;
  const [start, end] = axisAround(Math.min(low, value), Math.max(high, value));
  const place = (number) => ((number - start) / (end - start)) * width;
  const y = isMain ? 10 : 7;
  return makeSvg("svg", { class: "interval", viewBox: `0 0 ${width} ${y + 22}`, width, height: y + 22, role: "img", "aria-label": `between ${low} and ${high}` },
    makeSvg("line", { class: "axis", x1: 0, x2: width, y1: y, y2: y }),
    ...[0, width].map((x) => makeSvg("line", { class: "axis", x1: x, x2: x, y1: y - 4, y2: y + 4 })),
    makeSvg("line", { class: "range", x1: place(low), x2: place(high), y1: y, y2: y, "stroke-width": isMain ? 10 : 7 }),
    makeSvg("circle", { class: "point", cx: place(value), cy: y, r: isMain ? 6 : 4.5 }),
    makeSvg("text", { x: 0, y: y + 20 }, formatNumber(start)),
    makeSvg("text", { x: width, y: y + 20, "text-anchor": "end" }, formatNumber(end)));
}
