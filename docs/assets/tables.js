// A search box over every long table: the ops, the ATen ops, the packages.
for (const table of document.querySelectorAll(".md-typeset table")) {
  const rows = [...table.tBodies[0]?.rows ?? []];
  if (rows.length < 25) continue;
  const box = document.createElement("input");
  Object.assign(box, { type: "search", className: "table-filter", placeholder: `filter ${rows.length} rows` });
  box.setAttribute("aria-label", "Filter the rows of the table below");
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  (table.closest(".md-typeset__scrollwrap") ?? table).before(box);
}
