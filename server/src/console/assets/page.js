// Script of the operator console: running clocks, live updates of page parts, and the search key.
"use strict";

(() => {
  // Formats a span of time as the server does.
  const span = (ms) => {
    const s = Math.floor(ms / 1000);
    const two = (n) => String(n).padStart(2, "0");
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} m ${two(s % 60)} s`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor((s % 3600) / 60))} m`;
    return `${Math.floor(s / 86400)} d ${two(Math.floor((s % 86400) / 3600))} h`;
  };

  // The browser's clock may be wrong, so only the time that has passed since the page was loaded is added.
  const made = new WeakMap();
  const begin = (root, at) => {
    for (const time of root.querySelectorAll("time[data-age], time[data-left]")) made.set(time, at);
  };
  const tick = () => {
    const now = performance.now();
    for (const time of document.querySelectorAll("time[data-age], time[data-left]")) {
      const passed = now - (made.get(time) ?? now);
      const { age, left } = time.dataset;
      const text = age === undefined ? span(Math.max(0, Number(left) - passed)) : span(Number(age) + passed);
      if (time.textContent !== text) time.textContent = text;
      if (left !== undefined) time.classList.toggle("late", Number(left) - passed < 3000);
    }
  };
  begin(document, performance.now());
  setInterval(tick, 1000);

  // The slash key moves the focus to the search field, unless the focus is in an input.
  document.addEventListener("keydown", (event) => {
    const writes = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key !== "/" || writes || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    document.getElementById("find").focus();
  });

  const address = document.body.dataset.live;
  if (!address) return;
  const state = document.getElementById("state");
  const say = (text, mood) => {
    state.hidden = false;
    state.className = `live ${mood}`;
    if (state.textContent !== text) state.textContent = text;
  };

  // Omits running times from the comparison, so that a part in which only times have changed is not replaced.
  const still = (part) => part.innerHTML.replace(/<time [^>]*>[^<]*<\/time>/g, "<time>");
  const adopt = (part, fresh, at) => {
    const times = part.querySelectorAll("time");
    const fresher = fresh.querySelectorAll("time");
    if (still(part) === still(fresh) && times.length === fresher.length) {
      times.forEach((time, i) => {
        for (const name of ["data-age", "data-left", "datetime"]) {
          const value = fresher[i].getAttribute(name);
          if (value !== null) time.setAttribute(name, value);
        }
        made.set(time, at);
      });
      return;
    }
    // Keeps a text selection and the keyboard focus in the part.
    const mark = document.getSelection();
    if (mark && !mark.isCollapsed && part.contains(mark.anchorNode)) return;
    const focus = part.contains(document.activeElement) ? document.activeElement : null;
    begin(fresh, at);
    part.replaceChildren(...fresh.childNodes);
    if (focus) {
      const href = focus.getAttribute("href");
      const again = [...part.querySelectorAll("a")].find((link) => link.getAttribute("href") === href);
      again?.focus({ preventScroll: true });
    }
  };

  let busy = false;
  let again = false;
  const refresh = async () => {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    const asked = performance.now();
    try {
      const response = await fetch(location.href, { headers: { accept: "text/html" } });
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const at = performance.now();
      if (response.ok) {
        for (const part of document.querySelectorAll("[data-part]")) {
          const fresh = page.getElementById(part.id);
          if (fresh) adopt(part, fresh, at);
        }
        tick();
        say("Live", "good");
      } else {
        say(`Not live: ${page.querySelector("h1")?.textContent ?? response.status}`, "bad");
      }
    } catch {
      say("Not live: the replica does not answer", "bad");
    }
    // The pause grows with the duration of a request, so that slow requests are repeated less often.
    await new Promise((done) => setTimeout(done, Math.max(400, 4 * (performance.now() - asked))));
    busy = false;
    if (again) {
      again = false;
      refresh();
    }
  };

  // A browser opens at most six connections to a host, so hidden pages must not occupy them.
  let events = null;
  const listen = () => {
    if (events || document.hidden) return;
    events = new EventSource(address);
    events.addEventListener("open", () => say("Live", "good"));
    events.addEventListener("changed", refresh);
    events.addEventListener("draining", () => {
      events.close();
      say("Not live: this replica is draining", "warning");
    });
    events.addEventListener("error", () => {
      if (events.readyState === EventSource.CLOSED) say("Not live: load the page again", "bad");
      else say("Not live: connecting again", "warning");
    });
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      events?.close();
      events = null;
    } else {
      listen();
      refresh();
    }
  });
  listen();
})();
