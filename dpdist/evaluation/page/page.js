"use strict";
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const key = (row, i) => {
    const cell = row.cells[i];
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    return cell.className === "number" ? -Infinity : cell.textContent;
  };
  const compare = (a, b) => {
    if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
    return typeof a === "number" ? -1 : 1;
  };
  heads.forEach((head, i) => head.firstElementChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of heads) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].map((row) => [key(row, i), row]).sort((a, b) => compare(a[0], b[0]));
    if (down) rows.reverse();
    body.append(...rows.map((pair) => pair[1]));
  }));
}
const hint = () => {
  for (const part of document.querySelectorAll(".scroll, .plot")) {
    part.parentElement.classList.toggle("more", part.scrollWidth > part.clientWidth + 1);
  }
};
addEventListener("resize", hint);
hint();
