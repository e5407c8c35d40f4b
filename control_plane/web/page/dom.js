// Elements and texts. Text comes from data: it only ever becomes textContent, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** A new element with attributes, texts and children. */
export function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same in a drawing. */
export function draw(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Set an attribute if it is another one: nothing is laid out anew for what is as before. */
export function set(element, name, value) {
  const text = String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/** Set a text if it is another one. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Fill a table whose elements are used again.
 * columns: {title, text(item), number, long, make(item)}; what `make` returns is kept as long as text(item) is the same.
 */
export function fill(table, columns, items) {
  if (!table.tHead) {
    const titles = columns.map((column) => make("th", { scope: "col", class: column.number ? "number" : "" }, column.title));
    table.append(make("thead", {}, make("tr", {}, ...titles)), make("tbody"));
  }
  const body = table.tBodies[0];
  table.hidden = items.length === 0;
  while (body.rows.length > items.length) body.deleteRow(-1);
  items.forEach((item, index) => {
    let row = body.rows[index];
    if (!row) {
      row = body.insertRow();
      for (const column of columns) {
        const cell = row.insertCell();
        if (column.number) cell.className = "number";
        if (column.long) cell.className = "long";
      }
    }
    columns.forEach((column, place) => {
      const cell = row.cells[place];
      const text = column.text(item);
      if (!column.make) say(cell, text);
      else if (cell.dataset.of !== text) {
        cell.dataset.of = text;
        cell.replaceChildren(column.make(item));
      }
    });
  });
}
