/* Charts drawn by hand: curves over steps, and a number with its interval. */
"use strict";

/* A training curve of more points than this is smoothed, over a thin trace of what was logged. */
const MANY_POINTS = 60;

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

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

/* Four digits at most, and no more than the number has. */
function sayNumber(value) {
  if (!isNumber(value)) return "not finite";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 10000) return Math.round(value).toLocaleString("en");
  if (size < 0.001) return value.toExponential(2).replace(/\.?0*e/, "e");
  return String(Number(value.toPrecision(4)));
}

/* The mean over a window round each point, so that the eye can follow a noisy curve; it narrows towards the ends. */
function smoothed(points) {
  const reach = Math.ceil(points.length / 60);
  return points.map(([x], i) => {
    const side = Math.min(reach, i, points.length - 1 - i);
    const window = points.slice(i - side, i + side + 1);
    return [x, window.reduce((sum, [, y]) => sum + y, 0) / window.length];
  });
}

const lowestOf = (points) => points.reduce((a, b) => (b[1] < a[1] ? b : a));

class CurveChart {
  constructor(root, lines, { height, series, ticks, isLogarithmic = false, hasSteps = true, onPoint = null }) {
    Object.assign(this, { lines, height, series, ticks, isLogarithmic, hasSteps, onPoint });
    this.root = make("div", { class: "chart" });
    root.append(this.root);
    onWidthChange(this.root, () => this.draw());
    this.root.addEventListener("pointermove", (event) => this.hover(event));
    this.root.addEventListener("pointerleave", () => this.onPoint?.(null));
  }

  pointsOf(name) {
    return this.lines
      .filter((line) => isNumber(line[name]) && (!this.isLogarithmic || line[name] > 0))
      .map((line) => [line.step, line[name]]);
  }

  draw() {
    const width = this.root.clientWidth;
    const [left, right, top, bottom] = [46, 16, 8, this.hasSteps ? 24 : 6];
    const curves = this.series.map((name) => [name, this.pointsOf(name)]).filter(([, points]) => points.length);
    const values = curves.flatMap(([, points]) => points.map(([, y]) => y));
    const [first, last] = [this.lines[0].step, this.lines[this.lines.length - 1].step];
    let [low, high] = [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), -Infinity)];
    if (!values.length) [low, high] = [0.1, 1];
    if (!this.isLogarithmic) low = Math.min(0, low);
    if (low === high) high = low + (Math.abs(low) || 1);
    const scale = this.isLogarithmic ? Math.log : (y) => y;
    this.x = (step) => left + ((step - first) / (last - first || 1)) * (width - left - right);
    this.y = (value) => top + ((scale(high) - scale(value)) / (scale(high) - scale(low))) * (this.height - top - bottom);
    this.svg = makeSvg("svg", { viewBox: `0 0 ${width} ${this.height}`, height: this.height, role: "img", "aria-label": this.series.join(" and ") });
    const ticks = this.isLogarithmic ? logarithmicTicks(low, high) : linearTicks(low, high, this.ticks);
    for (const tick of ticks) {
      this.svg.append(
        makeSvg("line", { class: "grid", x1: left, x2: width - right, y1: this.y(tick), y2: this.y(tick) }),
        makeSvg("text", { x: left - 8, y: this.y(tick), "text-anchor": "end", "dominant-baseline": "central" }, sayNumber(tick)));
    }
    if (this.hasSteps) this.drawSteps(first, last, width);
    for (const [name, points] of curves) this.drawCurve(name, points);
    this.cursor = makeSvg("g");
    this.svg.append(this.cursor);
    this.root.replaceChildren(this.svg);
  }

  drawSteps(first, last, width) {
    this.svg.append(makeSvg("text", { x: 38, y: this.height - 4, "text-anchor": "end" }, "step"));
    for (const tick of linearTicks(first, last, Math.max(2, width / 110))) {
      this.svg.append(makeSvg("text", { x: this.x(tick), y: this.height - 4, "text-anchor": "middle" }, sayNumber(tick)));
    }
  }

  path(points, name) {
    /* Far more points than pixels add nothing that can be seen. */
    const stride = Math.ceil(points.length / 3000);
    const kept = points.filter((_, i) => i % stride === 0 || i === points.length - 1);
    const places = kept.map(([x, y]) => `${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`);
    return makeSvg("path", { class: name, d: `M${places.join("L")}` });
  }

  drawCurve(name, points) {
    const isNoisy = name === "loss" && points.length > MANY_POINTS;
    if (isNoisy) this.svg.append(this.path(points, "raw"));
    this.svg.append(this.path(isNoisy ? smoothed(points) : points, name));
    if (name !== "valid_loss") return;
    if (points.length <= 40) {
      for (const [x, y] of points) this.svg.append(makeSvg("circle", { class: name, cx: this.x(x), cy: this.y(y), r: 3 }));
    }
    const [step, best] = lowestOf(points);
    this.svg.append(makeSvg("circle", { class: "best", cx: this.x(step), cy: this.y(best), r: 6.5 }));
  }

  hover(event) {
    const x = event.clientX - this.root.getBoundingClientRect().left;
    const distance = (line) => Math.abs(this.x(line.step) - x);
    this.onPoint?.(this.lines.reduce((a, b) => (distance(b) < distance(a) ? b : a)));
  }

  /* A dashed line at a step, or none; a dot on each curve that has a value there. */
  mark(line) {
    this.cursor.replaceChildren();
    if (!line) return;
    const x = this.x(line.step);
    this.cursor.append(makeSvg("line", { class: "cursor", x1: x, x2: x, y1: 4, y2: this.height - (this.hasSteps ? 22 : 4) }));
    for (const name of this.series) {
      if (isNumber(line[name]) && (!this.isLogarithmic || line[name] > 0)) {
        this.cursor.append(makeSvg("circle", { class: name, cx: x, cy: this.y(line[name]), r: 4 }));
      }
    }
  }
}

/* Round ends of an axis about an interval, never beyond 0 to 1, or 0 to 100; the whole of it for a single point. */
function axisAround(low, high) {
  const size = Math.abs(high);
  const limit = low >= 0 && high <= 1 ? 1 : low >= 0 && high <= 100 ? 100 : Infinity;
  const whole = Number.isFinite(limit) ? limit : roundStep(size);
  const step = high > low ? roundStep(Math.max((high - low) * 1.5, size * 1e-3)) : whole;
  let [start, end] = [Math.floor(low / step) * step, Math.ceil(high / step) * step];
  if (start === end && end >= limit) start -= step;
  else if (start === end) end += step;
  return [low >= 0 ? Math.max(0, start) : start, Math.min(limit, end)].map((value) => Number(value.toPrecision(12)));
}

function intervalBar({ value, interval }, width, isMain) {
  const [low, high] = interval;
  const [start, end] = axisAround(Math.min(low, value), Math.max(high, value));
  const place = (number) => ((number - start) / (end - start)) * width;
  const y = isMain ? 10 : 7;
  const svg = makeSvg("svg", { class: "interval", viewBox: `0 0 ${width} ${y + 22}`, width, height: y + 22, role: "img", "aria-label": `between ${low} and ${high}` });
  svg.append(
    makeSvg("line", { class: "axis", x1: 0, x2: width, y1: y, y2: y }),
    ...[0, width].map((x) => makeSvg("line", { class: "axis", x1: x, x2: x, y1: y - 4, y2: y + 4 })),
    makeSvg("line", { class: "range", x1: place(low), x2: Math.max(place(high), place(low) + 0.1), y1: y, y2: y, "stroke-width": isMain ? 10 : 7 }),
    makeSvg("circle", { class: "point", cx: place(value), cy: y, r: isMain ? 6 : 4.5 }),
    makeSvg("text", { x: 0, y: y + 20 }, sayNumber(start)),
    makeSvg("text", { x: width, y: y + 20, "text-anchor": "end" }, sayNumber(end)));
  return svg;
}
