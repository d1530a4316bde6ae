(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("js-on");
  const store = (value) => { try { if (value) localStorage.setItem("autoopt-theme", value); return localStorage.getItem("autoopt-theme"); } catch { return null; } };
  const known = store();
  if (known === "dark" || known === "light") root.dataset.theme = known;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    root.dataset.theme = dark ? "light" : "dark";
    store(root.dataset.theme);
  });
  const copied = async (text) => {
    try { await navigator.clipboard.writeText(text); return true; } catch { /* file: pages may lack the clipboard */ }
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  for (const button of document.querySelectorAll("[data-copy]")) {
    const words = button.textContent;
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", async () => {
      button.textContent = (await copied(document.getElementById(button.dataset.copy).textContent)) ? "Copied" : "Select and copy";
      setTimeout(() => { button.textContent = words; }, 1500);
    });
  }
  const key = (cell) => {
    if (!cell) return "";
    if (cell.dataset.v !== undefined && cell.dataset.v !== "") return Number(cell.dataset.v);
    return cell.classList.contains("missing") ? null : cell.textContent.trim();
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows].map((row) => [key(row.cells[column]), row]);
        rows.sort(([a], [b]) => {
          if (a === null || b === null) return (a === null) - (b === null);
          const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
          return down ? -order : order;
        });
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  }
})();
