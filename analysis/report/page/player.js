"use strict";
// Plays the games of a report in step: frames, scores, and what both agents would do: probabilities
// as bars, continuous actions as lines over time.
// The frames are what analysis/report/frame_codec.py packs.

async function unpackFrames(film) {
  const packed = Uint8Array.from(atob(film.data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const indices = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = film.width * film.height;
  for (let i = size; i < indices.length; i++) indices[i] ^= indices[i - size];
  return indices;
}

function paletteWords(colours) {
  const bytes = new Uint8Array(4 * colours.length);
  colours.forEach((colour, i) => {
    const value = parseInt(colour.slice(1), 16);
    bytes.set([value >> 16, (value >> 8) & 255, value & 255, 255], 4 * i);
  });
  return new Uint32Array(bytes.buffer);
}

// Bars of probabilities, with a mark for the other agent.
function barsView(figure, game) {
  const rows = [...figure.querySelectorAll(".bars li")].map((row) => ({
    row,
    bar: row.querySelector(".bar"),
    mark: row.querySelector(".mark"),
    percent: row.querySelector(".percent"),
  }));
  for (const { bar, mark } of rows) {
    bar.style.background = game.colour;
    mark.style.background = game.otherColour;
  }
  return function show(at, isLast) {
    const own = game.own[at];
    const others = game.others && game.others[at];
    rows.forEach(({ row, bar, mark, percent }, action) => {
      bar.style.width = own ? `${own[action] / 10}%` : "0";
      percent.textContent = own ? `${Math.round(own[action] / 10)}%` : "–";
      mark.hidden = !others;
      if (others) mark.style.left = `${others[action] / 10}%`;
      row.classList.toggle("taken", !isLast && own !== null && game.taken[at].includes(action));
    });
  };
}

// Lines of continuous actions: x is the step, y the place in the range, in thousandths from above.
const TRACE_STEPS = 120; // that are in view at once
const TRACE_MARGIN = 40; // above and below the range: a line along its end stays whole

function tracesView(figure, game, ranges) {
  const points = (asked, action) =>
    asked.flatMap((told, step) => (told ? [`${step},${1000 - told[action]}`] : [])).join(" ");
  const last = game.own.findLastIndex((told) => told !== null);
  const wide = Math.min(TRACE_STEPS, Math.max(last, 1));
  const high = 1000 + 2 * TRACE_MARGIN;
  const rows = [...figure.querySelectorAll(".traces li")].map((row, action) => {
    const find = (name) => row.querySelector(name);
    const [plot, own, others, ahead, now] = ["svg", ".own", ".others", ".ahead", ".now"].map(find);
    own.setAttribute("points", points(game.own, action));
    own.style.stroke = game.colour;
    find(".value").style.color = game.colour;
    if (game.others) others.setAttribute("points", points(game.others, action));
    others.style.stroke = find(".other").style.color = game.otherColour;
    find(".middle").setAttribute("d", `M0 500H${last}`);
    ahead.setAttribute("y", -TRACE_MARGIN);
    ahead.setAttribute("height", high);
    ahead.setAttribute("width", last);
    return { plot, ahead, now, value: find(".value"), other: find(".other"), range: ranges[action] };
  });
  const number = (told, action, [low, top]) =>
    told ? (low + (told[action] / 1000) * (top - low)).toPrecision(2) : "–";
  return function show(step) {
    const at = Math.min(step, last);
    const first = Math.max(0, Math.min(last - wide, at - wide / 2));
    rows.forEach(({ plot, ahead, now, value, other, range }, action) => {
      plot.setAttribute("viewBox", `${first} ${-TRACE_MARGIN} ${wide} ${high}`);
      ahead.setAttribute("x", at);
      now.setAttribute("d", `M${at} ${-TRACE_MARGIN}V${high}`);
      value.textContent = number(game.own[step], action, range);
      other.textContent = game.others ? number(game.others[step], action, range) : "";
    });
  };
}

function gameView(figure, game, data, indices) {
  const context = figure.querySelector("canvas").getContext("2d");
  const { width, height } = game.film;
  const count = game.own.length;
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const palette = paletteWords(game.film.palette);
  const score = figure.querySelector(".score");
  const moment = figure.querySelector(".moment");
  const showActions = data.ranges ? tracesView(figure, game, data.ranges) : barsView(figure, game);

  function describe(step, isLast) {
    if (isLast) return game.ended ? "game over" : "end of the film";
    if (data.ranges) return "";
    const taken = game.taken[step].map((action) => data.actions[action]).join("; ") || "nothing";
    return game.own[step] === null ? `the environment's wrapper presses ${taken}` : `takes ${taken}`;
  }

  return function show(step) {
    const at = Math.min(step, count - 1);
    const isLast = at === count - 1;
    const size = width * height;
    // Not every step has a picture of its own, but the end has.
    const picture = isLast ? game.film.count - 1 : Math.floor(at / game.stride);
    for (let i = 0; i < size; i++) pixels[i] = palette[indices[picture * size + i]];
    context.putImageData(image, 0, 0);
    score.textContent = `score ${game.scores[at]}`;
    moment.textContent = describe(at, isLast);
    showActions(at, isLast);
  };
}

function controlPlayer(player, views, count, rate) {
  const find = (name) => player.querySelector(name);
  const [play, seek, speed, clock] = [".play", ".seek", ".speed", ".clock"].map(find);
  let step = 0;
  let began = null; // {time, step} where the playing began; null while it stands still

  function show(wanted) {
    step = Math.max(0, Math.min(count - 1, wanted));
    seek.value = step;
    const seconds = (number) => `${(number / rate).toFixed(1)}`;
    clock.textContent = `${seconds(step)} / ${seconds(count - 1)} s`;
    seek.setAttribute("aria-valuetext", `${seconds(step)} seconds`);
    for (const view of views) view(step);
  }
  function tick(time) {
    if (began === null) return;
    if (began.time === null) began.time = time;
    const wanted = began.step + Math.floor(((time - began.time) / 1000) * rate * speed.value);
    if (wanted !== step) show(wanted);
    if (step === count - 1) setPlaying(false);
    else requestAnimationFrame(tick);
  }
  function setPlaying(isPlaying) {
    if (isPlaying && step === count - 1) show(0);
    began = isPlaying ? { time: null, step } : null;
    play.textContent = isPlaying ? "Pause" : "Play";
    if (isPlaying) requestAnimationFrame(tick);
  }
  function stepBy(difference) {
    setPlaying(false);
    show(step + difference);
  }
  seek.max = count - 1;
  play.addEventListener("click", () => setPlaying(began === null));
  find(".back").addEventListener("click", () => stepBy(-1));
  find(".on").addEventListener("click", () => stepBy(1));
  seek.addEventListener("input", () => {
    setPlaying(false);
    show(Number(seek.value));
  });
  speed.addEventListener("change", () => began !== null && setPlaying(true));
  for (const control of player.querySelectorAll(".controls :disabled")) control.disabled = false;
  show(Math.floor(count / 2));
}

async function startPlayer(player) {
  const data = JSON.parse(player.querySelector('script[type="application/json"]').textContent);
  const figures = [...player.querySelectorAll(".game")];
  const films = await Promise.all(data.games.map((game) => unpackFrames(game.film)));
  const views = data.games.map((game, i) => gameView(figures[i], game, data, films[i]));
  const count = Math.max(...data.games.map((game) => game.own.length));
  controlPlayer(player, views, count, data.rate);
}

for (const player of document.querySelectorAll(".player")) {
  startPlayer(player).catch(() => {
    player.querySelector(".clock").textContent = "this browser is too old to play the games";
  });
}
