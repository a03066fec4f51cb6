// Lets times run, asks for the live part of a page when there is news, and shows times in the
// reader's zone. Without it every page works, and stands still.
(function () {
  "use strict";

  const known = new WeakMap(); // when an element's number was true
  const pause = document.getElementById("pause");
  const news = document.getElementById("news");
  let source = null;
  let paused = false;
  let heard = false; // of the server, since the source ended last

  // As cli/rows.py writes durations.
  function span(seconds) {
    const whole = Math.floor(seconds);
    const two = (number) => String(number).padStart(2, "0");
    if (seconds < 10) return Math.max(seconds, 0).toFixed(1) + "s";
    if (whole < 120) return whole + "s";
    if (whole < 3600) return Math.floor(whole / 60) + "m" + two(whole % 60) + "s";
    if (whole < 172800) return Math.floor(whole / 3600) + "h" + two(Math.floor((whole % 3600) / 60)) + "m";
    return Math.floor(whole / 86400) + "d" + two(Math.floor((whole % 86400) / 3600)) + "h";
  }

  function since(element, now) {
    if (!known.has(element)) known.set(element, now);
    return (now - known.get(element)) / 1000;
  }

  function tick() {
    if (paused) return;
    const now = performance.now();
    for (const each of document.querySelectorAll("[data-left]")) {
      const left = Math.max(0, Number(each.dataset.left) - since(each, now));
      if (each.dataset.of) {
        const share = Math.min(1, left / Number(each.dataset.of));
        each.firstElementChild.setAttribute("width", (share * 100).toFixed(1) + "%");
      } else {
        each.textContent = span(left);
      }
    }
    for (const each of document.querySelectorAll("[data-age]")) {
      each.textContent = span(Number(each.dataset.age) + since(each, now));
    }
  }

  function localize() {
    for (const each of document.querySelectorAll("time[datetime]:not([data-local])")) {
      const date = new Date(each.getAttribute("datetime"));
      if (isNaN(date)) continue;
      each.dataset.local = "";
      each.title = each.textContent;
      const today = date.toDateString() === new Date().toDateString();
      each.textContent = today ? date.toLocaleTimeString() : date.toLocaleString();
    }
  }

  function fresh() {
    localize();
    tick();
  }

  function refresh() {
    const live = document.querySelector("[data-live][hx-get]");
    if (!live || paused || document.hidden) return;
    const opened = live.querySelector("details[open], input:checked");
    const selected = String(window.getSelection());
    if (!opened && !selected) window.htmx.trigger(live, "look");
  }

  function listen() {
    if (source || paused || document.hidden || !document.querySelector("[data-live][hx-get]")) return;
    source = new EventSource(document.body.dataset.news);
    source.addEventListener("look", function () {
      heard = true;
      news.textContent = "";
      refresh();
    });
    // Where nothing can stay open (Django) every source ends, and the browser asks again.
    source.addEventListener("error", function () {
      if (!heard) news.textContent = "This page's server does not answer.";
      heard = false;
    });
  }

  function mute() {
    if (source) source.close();
    source = null;
  }

  pause.hidden = !document.querySelector("[data-live][hx-get]");
  pause.addEventListener("click", function () {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    if (paused) mute();
    else listen();
  });
  // A browser has few connections to one host; and who does not look need not ask.
  document.addEventListener("visibilitychange", function () {
    if (document.hidden) mute();
    else listen();
  });
  document.body.addEventListener("htmx:afterSwap", fresh);
  document.body.addEventListener("htmx:sendError", function () {
    news.textContent = "This page's server does not answer.";
  });
  setInterval(tick, 250);
  fresh();
  listen();
})();
