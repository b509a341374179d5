(() => {
  const table = document.getElementById("trials");
  if (!table) return;
  const body = table.tBodies[0];
  const original = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => row.cells[column].dataset.sort ?? "";
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const number = button.dataset.kind === "number";
      const next = now === "none" ? (number ? "descending" : "ascending")
        : now === (number ? "descending" : "ascending") ? (number ? "ascending" : "descending") : "none";
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", next);
      let rows = [...original];
      if (next !== "none") {
        const sign = next === "ascending" ? 1 : -1;
        rows.sort((a, b) => {
          const x = key(a, column), y = key(b, column);
          if (x === "" || y === "") return (x === "") - (y === "");
          return sign * (number ? x - y : x.localeCompare(y));
        });
      }
      body.append(...rows);
    });
  });
})();
