// One series over time on a canvas. Colours come from the style sheet, so themes need nothing here.

const LEFT = 44;
const BOTTOM = 20;
const TOP = 8;
const RIGHT = 6;

/** The smallest of 1, 2, 5 times a power of ten that divides `max` into at most `parts`. */
export function niceStep(max, parts = 4) {
  const power = 10 ** Math.floor(Math.log10(max / parts));
  return power * [1, 2, 5, 10].find((factor) => max / (factor * power) <= parts);
}

export class TimeChart {
  /** @param {HTMLElement} parent @param {number} spanMs @param {(value: number | null) => void} onHover */
  constructor(parent, spanMs, onHover) {
    this.parent = parent;
    this.spanMs = spanMs;
    this.onHover = onHover;
    this.points = [];
    this.hoverX = null;
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    parent.append(this.canvas);
    new ResizeObserver(() => this.draw()).observe(parent);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.hover(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.hover(null));
  }

  add(at, value) {
    this.points.push({ at, value });
    while (this.points.length && at - this.points[0].at > this.spanMs) this.points.shift();
    this.draw();
  }

  hover(x) {
    this.hoverX = x;
    this.draw();
  }

  draw() {
    const width = this.parent.clientWidth;
    const height = this.parent.clientHeight;
    if (!width || !height) return;
    const scale = devicePixelRatio || 1;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = "11px system-ui, sans-serif";
    const style = getComputedStyle(this.parent);
    const colour = (name) => style.getPropertyValue(name).trim();
    const end = this.points.at(-1)?.at ?? Date.now();
    const highest = Math.max(1, ...this.points.map((point) => point.value));
    const step = niceStep(highest);
    const top = Math.ceil(highest / step) * step;
    const x = (at) => LEFT + (width - LEFT - RIGHT) * (1 - (end - at) / this.spanMs);
    const y = (value) => TOP + (height - TOP - BOTTOM) * (1 - value / top);
    this.drawGrid(pen, { width, height, step, top, x, y, end, colour });
    this.drawSeries(pen, { x, y, colour });
    this.drawHover(pen, { height, x, y, colour });
    const last = this.points.at(-1)?.value ?? 0;
    this.canvas.setAttribute("aria-label", `now ${Math.round(last)}, at most ${Math.round(highest)} tokens per second`);
  }

  drawGrid(pen, { width, height, step, top, x, y, end, colour }) {
    pen.strokeStyle = colour("--line");
    pen.fillStyle = colour("--muted");
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (let value = 0; value <= top + step / 2; value += step) {
      const line = Math.round(y(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(LEFT, line);
      pen.lineTo(width - RIGHT, line);
      pen.stroke();
      pen.fillText(value >= 1000 ? `${+(value / 1000).toFixed(1)}k` : String(+value.toFixed(1)), LEFT - 8, line);
    }
    pen.textBaseline = "alphabetic";
    const minutes = this.spanMs / 60000;
    for (let ago = 0; ago <= minutes; ago += 1) {
      pen.textAlign = ago === 0 ? "right" : ago === minutes ? "left" : "center";
      pen.fillText(ago === 0 ? "now" : `−${ago} min`, x(end - ago * 60000), height - 4);
    }
  }

  drawSeries(pen, { x, y, colour }) {
    if (this.points.length < 2) return;
    const area = new Path2D();
    const line = new Path2D();
    this.points.forEach(({ at, value }, index) => {
      line[index ? "lineTo" : "moveTo"](x(at), y(value));
      area[index ? "lineTo" : "moveTo"](x(at), y(value));
    });
    area.lineTo(x(this.points.at(-1).at), y(0));
    area.lineTo(x(this.points[0].at), y(0));
    pen.globalAlpha = 0.14;
    pen.fillStyle = colour("--accent");
    pen.fill(area);
    pen.globalAlpha = 1;
    pen.strokeStyle = colour("--accent");
    pen.lineWidth = 1.75;
    pen.lineJoin = "round";
    pen.stroke(line);
    pen.lineWidth = 1;
  }

  drawHover(pen, { height, x, y, colour }) {
    if (this.hoverX === null || !this.points.length) return this.onHover(null);
    const nearest = this.points.reduce((best, point) =>
      Math.abs(x(point.at) - this.hoverX) < Math.abs(x(best.at) - this.hoverX) ? point : best,
    );
    pen.strokeStyle = colour("--muted");
    pen.beginPath();
    pen.moveTo(x(nearest.at), TOP);
    pen.lineTo(x(nearest.at), height - BOTTOM);
    pen.stroke();
    pen.fillStyle = colour("--accent");
    pen.beginPath();
    pen.arc(x(nearest.at), y(nearest.value), 3.5, 0, 2 * Math.PI);
    pen.fill();
    return this.onHover(nearest);
  }
}
