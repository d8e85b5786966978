(() => {
  "use strict";
  const root = document.documentElement;
  const all = (query, from = document) => [...from.querySelectorAll(query)];
  const keep = (name, value) => {
    try { localStorage.setItem(name, value); } catch { /* a page from disk may not store */ }
  };
  const kept = (name) => {
    try { return localStorage.getItem(name); } catch { return null; }
  };

  // languages: both texts are in the page, the sheet hides one
  const speak = (lang) => {
    root.lang = lang;
    all("button[data-speak]").forEach((b) => b.setAttribute("aria-pressed", b.dataset.speak === lang));
    const title = document.querySelector(`h1 [lang=${lang}]`);
    if (title) document.title = title.textContent;
    all("input[data-en]").forEach((i) => { i.placeholder = i.dataset[lang]; });
  };
  all("button[data-speak]").forEach((b) => b.addEventListener("click", () => {
    keep("mlpkit-lang", b.dataset.speak);
    speak(b.dataset.speak);
  }));
  speak(["en", "zh"].includes(kept("mlpkit-lang")) ? kept("mlpkit-lang") : root.lang);

  // tables: sort by a column's exact values, what has none stays last; filter by any text
  const value = (row, column) => row.cells[column].dataset.v ?? row.cells[column].textContent.trim();
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };
  const sort = (head) => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    all("th", head.parentNode).forEach((h) => h.hasAttribute("aria-sort") && h.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows].map((row) => [value(row, head.cellIndex), row]);
    rows.sort(([a], [b]) => (a === "" ? 1 : 0) - (b === "" ? 1 : 0) || (up ? compare(a, b) : compare(b, a)));
    body.append(...rows.map(([, row]) => row));
  };
  all("th[aria-sort] button").forEach((b) => b.addEventListener("click", () => sort(b.closest("th"))));
  all("input[data-filter]").forEach((input) => input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    all("tbody tr", document.getElementById(input.dataset.filter)).forEach((row) => {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    });
  }));

  // curves: a variant is shown or hidden in all of them, and the others fade while one is pointed at
  const boxes = all("input[data-series]");
  const show = (box) => all(`#curves .series.v${box.dataset.series}`).forEach((s) => s.classList.toggle("off", !box.checked));
  boxes.forEach((box) => {
    box.addEventListener("change", () => show(box));
    const fade = (on) => all("#curves .series, #fronts .series").forEach((s) =>
      s.classList.toggle("dim", on && !s.classList.contains(`v${box.dataset.series}`)));
    box.parentNode.addEventListener("mouseenter", () => fade(true));
    box.parentNode.addEventListener("mouseleave", () => fade(false));
    show(box); // a reloaded page remembers its boxes
  });
  all("button[data-all]").forEach((b) => b.addEventListener("click", () => boxes.forEach((box) => {
    box.checked = b.dataset.all === "1";
    show(box);
  })));

  // tabs: one panel of a group at a time
  const choose = (tab) => {
    const tabs = all("[role=tab]", tab.parentNode);
    tabs.forEach((other) => {
      other.setAttribute("aria-selected", other === tab);
      other.tabIndex = other === tab ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = other !== tab;
    });
  };
  all("[role=tablist]").forEach((list) => {
    const tabs = all("[role=tab]", list);
    tabs.forEach((tab, number) => {
      tab.addEventListener("click", () => choose(tab));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = tabs[(number + step + tabs.length) % tabs.length];
        next.focus();
        choose(next);
      });
    });
    if (tabs.length) choose(tabs[0]);
  });

  // exact values: the titles of marks, shown at once
  all("svg.chart title").forEach((title) => {
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  });
  const box = document.createElement("div");
  box.id = "tip";
  box.hidden = true;
  document.body.append(box);
  const point = (target, left, top) => {
    const words = target && (target.dataset.tip ?? target.dataset[`tip${root.lang === "zh" ? "Zh" : "En"}`]);
    box.hidden = !words;
    if (!words) return;
    box.textContent = words;
    box.style.left = `${Math.max(4, Math.min(left + 12, innerWidth - box.offsetWidth - 8))}px`;
    box.style.top = `${top + 24 + box.offsetHeight > innerHeight ? top - 10 - box.offsetHeight : top + 16}px`;
  };
  const told = (node) => node.closest?.("[data-tip],[data-tip-en]");
  document.addEventListener("mousemove", (event) => point(told(event.target), event.clientX, event.clientY));
  document.addEventListener("focusin", (event) => {
    const target = told(event.target);
    const place = event.target.getBoundingClientRect();
    point(event.target.matches(":focus-visible") ? target : null, place.left, place.bottom - 10);
  });
  document.addEventListener("focusout", () => point(null));
  addEventListener("beforeprint", () => all("details").forEach((d) => { d.open = true; }));
})();
