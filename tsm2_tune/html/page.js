"use strict";
// The page's script: it draws charts, shows their numbers, sorts tables and lists trials. Texts from the database are
// only inserted as text nodes, never as HTML.

const contents = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const LONG = 24;  // characters; the browser may break a longer text anywhere

// Returns the rows of a table whose columns have the form that table_data.columnar returns.
function rowsOf(columns) {
  const names = Object.keys(columns);
  const lists = names.map((name) => {
    const column = columns[name];
    return Array.isArray(column) ? column : column.at.map((place) => column.texts[place]);
  });
  return (lists[0] || []).map((_, at) => Object.fromEntries(names.map((name, place) => [name, lists[place][at]])));
}

function draw(place, spec, data) {
  const options = {
    actions: false, ast: true, bind: byId(`choices-${place.dataset.chart}`), defaultStyle: false, mode: "vega-lite",
    renderer: "svg", tooltip: { disableDefaultStyle: true },
  };
  return vegaEmbed(place, { ...spec, datasets: data }, options);
}

function add(parent, name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  parent.append(element);
  return element;
}

// Appends a text. The browser may break its lines after colons and commas, which configurations contain.
function addText(parent, text) {
  String(text).split(/(?<=[,:])/).forEach((part, place) => {
    if (place) add(parent, "wbr");
    parent.append(part);
  });
}

// Appends a row of texts. The columns in `numbers` are right-aligned.
function addRow(body, texts, numbers) {
  const line = add(body, "tr");
  texts.forEach((text, place) => {
    const cell = add(line, place ? "td" : "th");
    cell.className = numbers[place] ? "number" : text.length > LONG ? "long" : "";
    addText(cell, text);
    if (!place) cell.scope = "row";
  });
  return line;
}

function option(select, value, text) {
  const one = add(select, "option", text);
  one.value = value;
}

// --- Downloads ---

// Returns a value as a CSV cell. Numbers have at most 6 significant digits; null is an empty cell. If a spreadsheet
// would read a text as a formula, an apostrophe precedes the text.
function csvCell(value) {
  if (value === null) return "";
  if (typeof value === "number") return String(Number.isInteger(value) ? value : Number(value.toPrecision(6)));
  return `"${value.replace(/^(?=[=+@\t\r\n-])/, "'").replaceAll('"', '""')}"`;
}

function csvOf(rows) {
  return rows.map((row) => `${row.map(csvCell).join(",")}\r\n`).join("");
}

// Returns the value of a cell of a table in this page: a number, a text, or null if the cell shows a dash.
function valueOf(cell) {
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  return cell.textContent === "-" ? null : cell.textContent;
}

function offerCsv(button, name, rows) {
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csvOf(rows())], { type: "text/csv" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}

// --- Tables that can be sorted ---

function sortBy(table, place, head) {
  const descending = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const sign = descending ? -1 : 1;
  const isNumber = head.classList.contains("number");
  const key = (row) => (isNumber ? row.cells[place].dataset.value : row.cells[place].textContent);
  const order = (one, other) => {
    if (one === undefined || other === undefined) return (one === undefined) - (other === undefined);
    return sign * (isNumber ? one - other : one.localeCompare(other, "en", { numeric: true }));
  };
  const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
  rows.sort((one, other) => order(one[0], other[0]));
  table.tBodies[0].append(...rows.map((pair) => pair[1]));
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sortBy(table, place, head));
    head.replaceChildren(button);
  });
}

document.querySelectorAll("table.sortable").forEach(makeSortable);

if (byId("winners-csv")) {
  const table = document.querySelector("#best table");
  offerCsv(byId("winners-csv"), "winners.csv", () => [...table.rows].map((row) => [...row.cells].map(valueOf)));
}

// --- The numbers of a chart ---

// Fills the table of a chart once the reader opens it. Its columns are those of the chart's tooltip.
function showNumbers(name, spec, rows) {
  const details = byId(`numbers-${name}`);
  const columns = spec.layer.map((one) => one.encoding.tooltip).find(Boolean);
  const isNumber = columns.map((one) => one.type !== "nominal");
  const fill = () => {
    if (!details.open) return;
    details.querySelector(".scroll")?.remove();
    const region = add(details, "div", undefined, "scroll");
    region.tabIndex = 0;
    region.setAttribute("role", "region");
    region.setAttribute("aria-labelledby", `label-${name}`);
    const table = add(region, "table", undefined, "sortable");
    add(table, "caption", byId(`label-${name}`).textContent);
    const [heads, body] = [add(add(table, "thead"), "tr"), add(table, "tbody")];
    columns.forEach((one, place) => { add(heads, "th", one.title, isNumber[place] ? "number" : "").scope = "col"; });
    for (const row of rows) {
      const values = columns.map((one) => row[one.field]);
      const line = addRow(body, values.map((value) => String(value ?? "-")), isNumber);
      values.forEach((value, place) => {
        if (isNumber[place] && value !== null) line.cells[place].dataset.value = value;
      });
    }
    makeSortable(table);
  };
  details.ontoggle = fill;
  fill();
}

// --- Heat maps ---

function cellsOf(map, x, y) {
  const [across, down] = [map.tunables[x], map.tunables[y]];
  const cells = new Map();
  map.us.forEach((us, trial) => {
    const [i, j] = [across.at[trial], down.at[trial]];
    const cell = cells.get(`${i},${j}`) || { x_place: i, y_place: j, us: Infinity, trials: 0 };
    cells.set(`${i},${j}`, { ...cell, us: Math.min(cell.us, us), trials: cell.trials + 1 });
  });
  const found = [...cells.values()];
  const middle = Math.sqrt(Math.min(...found.map((one) => one.us)) * Math.max(...found.map((one) => one.us)));
  return found.map((one) => ({
    ...one, x_value: across.values[one.x_place], y_value: down.values[one.y_place], is_light: one.us <= middle,
  }));
}

function showMaps(maps) {
  const [of, across, down] = ["map-of", "map-x", "map-y"].map(byId);
  const place = byId("chart-heat-map");
  const show = () => {
    const map = maps[of.value];
    const cells = cellsOf(map, across.value, down.value);
    const spec = structuredClone(contents.charts["heat-map"].spec);
    spec.height *= map.tunables[down.value].values.length;
    const width = 90 * map.tunables[across.value].values.length + 150;
    if (width < place.clientWidth) spec.width = width;
    for (const layer of spec.layer) {
      layer.encoding.x.title = across.value;
      layer.encoding.y.title = down.value;
      [layer.encoding.tooltip[0].title, layer.encoding.tooltip[1].title] = [across.value, down.value];
    }
    showNumbers("heat-map", spec, cells);
    return draw(place, spec, { cells });
  };
  const choose = () => {
    const names = Object.keys(maps[of.value].tunables);
    for (const [select, chosen] of [[across, names[0]], [down, names[1]]]) {
      select.replaceChildren();
      names.forEach((name) => option(select, name, name));
      select.value = chosen;
    }
    return show();
  };
  maps.forEach((map, place) => option(of, place, map.name));
  of.addEventListener("change", choose);
  across.addEventListener("change", show);
  down.addEventListener("change", show);
  return choose();
}

// --- Trials ---

function showTrials({ rows: columns, heads, outcomes }) {
  const AT_A_TIME = 100;
  const rows = rowsOf(columns);
  const names = Object.keys(heads);
  const isNumber = names.map((name) => heads[name][1]);
  const texts = rows.map((row) => names.map((name) => (heads[name][1] ? "" : row[name])).join(" ").toLowerCase());
  const [text, outcome, problem, more] = ["trial-text", "trial-outcome", "trial-problem", "trial-more"].map(byId);
  const [table, count] = [byId("trial-table"), byId("trial-count")];
  let [found, shown] = [[], 0];
  const said = (name, value) => (value === null ? "-" : name === "us" || name === "spread" ? value.toFixed(1) : value);

  const showMore = () => {
    for (const row of found.slice(shown, shown + AT_A_TIME)) {
      addRow(table.tBodies[0], names.map((name) => String(said(name, row[name]))), isNumber);
    }
    shown = Math.min(found.length, shown + AT_A_TIME);
    more.hidden = shown === found.length;
    count.textContent = `${found.length} of ${rows.length} trials match; ${shown} are shown.`;
  };
  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = rows.filter((row, at) =>
      (!outcome.value || row.outcome === outcome.value) && (!problem.value || row.problem === problem.value)
      && words.every((word) => texts[at].includes(word)));
    table.tBodies[0].replaceChildren();
    shown = 0;
    showMore();
  };
  const present = new Set(rows.map((row) => row.outcome));
  outcomes.filter((one) => present.has(one)).forEach((one) => option(outcome, one, one));
  [...new Set(rows.map((row) => row.problem))].forEach((one) => option(problem, one, one));
  text.addEventListener("input", filter);
  outcome.addEventListener("change", filter);
  problem.addEventListener("change", filter);
  more.addEventListener("click", showMore);
  offerCsv(byId("trials-csv"), "trials.csv", () => [
    names.map((name) => heads[name][0]), ...found.map((row) => names.map((name) => row[name]))]);
  filter();
}

// --- The page ---

async function show() {
  if (contents.trials) showTrials(contents.trials);
  for (const place of document.querySelectorAll("[data-chart]")) {
    const { spec, data } = contents.charts[place.dataset.chart];
    if (place.dataset.chart === "heat-map") {
      await showMaps(contents.maps.maps);
      continue;
    }
    const sets = Object.fromEntries(Object.entries(data).map(([name, one]) => [name, rowsOf(one)]));
    showNumbers(place.dataset.chart, spec, Object.values(sets)[0]);
    await draw(place, spec, sets);
  }
  document.body.dataset.ready = "";
}

show();
