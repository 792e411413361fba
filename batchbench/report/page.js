"use strict";
// The page works without this script, which makes tables sortable and long lists filterable.
{
  const key = (row, place) => {
    const cell = row.cells[place];
    const text = cell.dataset.v !== undefined ? cell.dataset.v : cell.textContent.trim();
    // Numbers are formatted for people: with a minus sign, thousands separators, and a unit.
    const bare = text.replace(/^[<>$+]+/, "").replace("−", "-").replace(/,/g, "").replace(/%$/, "");
    return bare !== "" && !Number.isNaN(Number(bare)) ? bare : text;
  };
  const order = (one, other) => {
    if (one === "" || other === "") return (one === "") - (other === "");
    const [a, b] = [Number(one), Number(other)];
    return Number.isNaN(a) || Number.isNaN(b) ? one.localeCompare(other) : a - b;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    heads.forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows].map((row) => [key(row, place), row]);
        // Rows without a value stay last in both directions.
        rows.sort(([a], [b]) => (a === "" || b === "" ? order(a, b) : down ? -order(a, b) : order(a, b)));
        body.append(...rows.map(([, row]) => row));
      });
    });
  }
  for (const list of document.querySelectorAll("[data-filter]")) {
    const rows = [...(list.tBodies ? list.tBodies[0].rows : list.children)];
    const box = document.createElement("div");
    const label = document.createElement("label");
    const input = document.createElement("input");
    const count = document.createElement("output");
    box.className = "filter";
    input.type = "search";
    input.id = `filter-${list.id}`;
    label.htmlFor = input.id;
    label.textContent = list.dataset.filter;
    box.append(label, input, count);
    (list.closest(".scroll") || list).before(box);
    const texts = rows.map((row) => row.textContent.toLowerCase());
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, place) => {
        row.hidden = !words.every((word) => texts[place].includes(word));
        shown += !row.hidden;
      });
      count.textContent = words.length ? `${shown} of ${rows.length}` : "";
    });
  }
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details[data-print]:not([open])")];
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of opened) part.open = false;
  });
}
