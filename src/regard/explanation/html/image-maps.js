/* Maps over an image: a kind, a layer and a head are chosen. */
"use strict";

PAGES["image-maps"] = (root, data) => {
  root.querySelector("header").append(make("p", { class: "lead" }, IMAGE_MAPS_LEAD[data.weights.rollout ? "attention" : "grad-cam"]));
  const section = make("section");
  root.append(section);
  const picture = new Image();
  picture.addEventListener("load", () => new ImageMapViewer(section, data, picture));
  picture.src = data.picture;
};

const IMAGE_MAPS_LEAD = {
  attention: "The redder a square, the larger its weight. Rollout multiplies the attention of all layers, with their residual connections; the attention of the class token can be shown for each layer and head. Attention weights show what a layer reads from, not why the model makes a prediction.",
  "grad-cam": "The redder a square, the more its features increase the logit of the predicted label, by their gradient; 1 is the largest.",
};
const IMAGE_SIDE = 448;
const IMAGE_TILE = 88;

class ImageMapViewer {
  constructor(root, data, picture) {
    this.data = data;
    this.picture = picture;
    this.maps = Object.fromEntries(Object.entries(data.weights).map(([kind, packed]) => [kind, unpackWeights(packed)]));
    this.opacity = 0.75;
    this.controls = make("div", { class: "image-map-controls" });
    this.canvas = make("canvas", { class: "image-map", role: "img" });
    this.caption = make("p", { class: "image-map-caption", "aria-live": "polite" });
    this.heads = make("div", { class: "image-map-heads" });
    root.append(this.controls, make("div", { class: "image-map-body" },
      make("figure", { class: "image-map-main" }, this.canvas, this.caption), this.heads));
    this.canvas.addEventListener("pointermove", (event) => this.pointAt(event));
    this.canvas.addEventListener("pointerleave", () => this.describe());
    this.choose(Object.keys(this.maps).at(-1), null, null);
  }

  choose(kind, layer, head) {
    Object.assign(this, { kind, layer, head });
    this.weights = averageMap(this.maps[kind], layer, head);
    this.peak = largestOf(this.weights);
    this.showControls();
    this.draw(this.canvas, IMAGE_SIDE, this.weights, this.peak);
    this.describe();
    this.showHeads();
  }

  showControls() {
    const kinds = Object.keys(this.maps).map((kind) => [kind, this.data.names[kind]]);
    const slider = make("input", { type: "range", min: 0, max: 1, step: 0.05, value: this.opacity, "aria-label": "opacity of the map",
      oninput: (event) => { this.opacity = Number(event.target.value); this.draw(this.canvas, IMAGE_SIDE, this.weights, this.peak); } });
    this.controls.replaceChildren(
      ...(kinds.length > 1 ? [makeChoices("Map", kinds, this.kind, (kind) => this.choose(kind, null, null))] : []),
      make("label", { class: "image-map-opacity" }, "Opacity ", slider));
  }

  /* The picture in gray, and a square of color for each weight. */
  draw(canvas, side, weights, peak) {
    const scale = window.devicePixelRatio || 1;
    const width = side * Math.min(1, this.data.aspect);
    const height = side * Math.min(1, 1 / this.data.aspect);
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.width = `${width}px`;
    canvas.style.aspectRatio = `${width} / ${height}`;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = this.picture.naturalWidth > 64;
    context.filter = this.opacity > 0 ? "grayscale(1)" : "none";
    context.drawImage(this.picture, 0, 0, canvas.width, canvas.height);
    context.filter = "none";
    const [, , rows, columns] = this.maps[this.kind].shape;
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const share = Math.min(1, weights[row * columns + column] / peak);
        context.fillStyle = `rgb(255 ${Math.round(204 * (1 - share))} 0 / ${this.opacity * share})`;
        const [left, right] = [column, column + 1].map((each) => Math.round((each * canvas.width) / columns));
        const [top, bottom] = [row, row + 1].map((each) => Math.round((each * canvas.height) / rows));
        context.fillRect(left, top, right - left, bottom - top);
      }
    }
  }

  title() {
    const parts = [[this.layer, "layer"], [this.head, "head"]].filter(([index]) => index !== null).map(([index, name]) => `${name} ${index + 1}`);
    const isMean = this.kind === "attention" && parts.length < 2;
    return [this.data.names[this.kind], ...parts, ...(isMean ? [parts.length ? "mean of its heads" : "mean of all layers and heads"] : [])].join(", ");
  }

  describe() {
    this.caption.textContent = `${this.title()}. Weights of squares: 0 to ${formatWeight(this.peak)}.`;
    this.canvas.setAttribute("aria-label", `${this.title()} over the picture`);
  }

  pointAt(event) {
    const [, , rows, columns] = this.maps[this.kind].shape;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns)));
    const row = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows)));
    this.caption.textContent = `Row ${row + 1}, column ${column + 1}: weight ${formatWeight(this.weights[row * columns + column])}`;
  }

  /* Every layer and head, each on a scale of its own: the largest weights of some heads are a hundred times those of others. */
  showHeads() {
    this.heads.replaceChildren();
    if (this.kind !== "attention") return;
    const map = this.maps.attention;
    const [numLayers, numHeads] = map.shape;
    for (let layer = 0; layer < numLayers; layer += 1) {
      const tiles = Array.from({ length: numHeads }, (_, head) => {
        const canvas = make("canvas");
        const weights = averageMap(map, layer, head);
        this.draw(canvas, IMAGE_TILE, weights, largestOf(weights));
        const isChosen = this.layer === layer && this.head === head;
        return make("button", { type: "button", class: "image-map-tile", "aria-pressed": String(isChosen), title: `layer ${layer + 1}, head ${head + 1}`,
          onclick: () => this.choose("attention", ...(isChosen ? [null, null] : [layer, head])) }, canvas);
      });
      this.heads.append(make("div", { class: "image-map-layer" },
        make("button", { type: "button", class: "quiet-button", onclick: () => this.choose("attention", layer, null) }, `Layer ${layer + 1}`), ...tiles));
    }
  }
}
