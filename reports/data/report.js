"use strict";
// Text of models and games reaches the page through textContent alone: it is shown, and never read as markup.

// The theme: automatic, light or dark, kept where the browser lets a page keep something.
(() => {
  const themes = ["auto", "light", "dark"], button = document.getElementById("theme");
  const stored = () => { try { return localStorage.getItem("sr-theme"); } catch { return null; } };
  const set = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
    button.setAttribute("aria-label", `Theme: ${theme === "auto" ? "automatic" : theme}; press to change`);
    try { localStorage.setItem("sr-theme", theme); } catch { /* a page from a file may keep nothing */ }
  };
  let now = themes.includes(stored()) ? stored() : "auto";
  set(now);
  button.addEventListener("click", () => set((now = themes[(themes.indexOf(now) + 1) % themes.length])));
})();

// What a mark of a figure stands for, beside the pointer.
(() => {
  const tip = document.getElementById("tip");
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest?.("figure svg [role='graphics-symbol'][aria-label]");
    const told = mark?.getAttribute("aria-roledescription") ?? "";
    tip.hidden = !mark || /axis|legend|title/.test(told);
    if (tip.hidden) return;
    tip.textContent = mark.getAttribute("aria-label");
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
  });
})();

// The group browser.
(() => {
  const shelves = JSON.parse(document.getElementById("shelves").textContent);
  const list = document.getElementById("list");
  if (!list) return;
  const view = document.getElementById("group"), found = document.getElementById("found");
  const groups = shelves.flatMap((shelf) => shelf.groups.map((group) => ({ ...group, shelf })));
  const OUTCOMES = { all_fail: "all fail", mixed: "mixed", all_succeed: "all succeed", uniform: "uniform", cut: "cut, not known" };
  const VERDICTS = {
    right: "rightly cut", wrong: "wrongly cut", missed: "missed", kept: "rightly kept", over: "over already",
    unknown: "cut, outcome not known", none: "no gate",
  };
  const MATCHES = ["matched exactly", "matched after folding case and spaces", "matched as the nearest command", "not admitted by the game"];
  const ENDINGS = { won: "won", horizon: "horizon", cut: "cut", context: "context full" };
  for (const shelf of shelves) { // one scale for all groups, so that their lines can be compared
    const all = shelf.groups.flatMap((group) => group.signal ?? []).concat(Object.values(shelf.thresholds), shelf.groups.map((group) => (shelf.recorded ? group.gate?.threshold : null) ?? null)).filter((value) => value !== null);
    const low = Math.min(0, ...all.slice(0, 1)), step = 10 ** Math.floor(Math.log10(all.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-9)));
    shelf.range = [all.reduce((a, b) => Math.min(a, b), low), Math.ceil(all.reduce((a, b) => Math.max(a, b), -Infinity) / step) * step || step];
  }
  let shown = [], chosen = -1, opened = 0;

  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const draw = (tag, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const round = (value) => (value === null || value === undefined ? "n/a" : Number(value.toPrecision(3)).toString());

  // Filters.
  const filters = ["run", "outcome", "task", "verdict", "name"].map((name) => document.getElementById(`filter-${name}`));
  const [byRun, byOutcome, byTask, byVerdict, byName] = filters;
  const offer = (select, values, words) => {
    for (const [value, text] of [["", "all"], ...values.map((value) => [value, words?.[value] ?? value])]) {
      const option = make("option", "", text);
      option.value = value;
      select.append(option);
    }
  };
  const distinct = (read, order) => {
    const there = [...new Set(groups.map(read))];
    return order ? Object.keys(order).filter((value) => there.includes(value)) : there.sort();
  };
  offer(byRun, shelves.map((shelf) => shelf.run));
  document.getElementById("run-label").hidden = shelves.length < 2;
  offer(byOutcome, distinct((group) => group.outcome, OUTCOMES), OUTCOMES);
  offer(byTask, distinct((group) => group.task));
  const verdicts = distinct((group) => group.verdict, VERDICTS);
  offer(byVerdict, groups.some((group) => group.gate?.flagged) ? ["flagged", ...verdicts] : verdicts, { ...VERDICTS, flagged: "flagged" });
  const matches = (group) =>
    (!byRun.value || group.shelf.run === byRun.value) &&
    (!byOutcome.value || group.outcome === byOutcome.value) &&
    (!byTask.value || group.task === byTask.value) &&
    (!byVerdict.value || (byVerdict.value === "flagged" ? group.gate?.flagged : group.verdict === byVerdict.value)) &&
    group.id.toLowerCase().includes(byName.value.toLowerCase());

  // The list.
  const dots = (group) => {
    const row = make("span", "dots");
    row.setAttribute("aria-hidden", "true");
    for (const reward of group.rewards) row.append(make("span", `dot${group.outcome === "cut" ? " unknown" : reward > 0 ? " won" : ""}`));
    return row;
  };
  const item = (group, place) => {
    const node = make("div", "item"), about = make("div", "about");
    node.id = `group-${place}`;
    node.setAttribute("role", "option");
    node.setAttribute("aria-selected", "false");
    node.dataset.place = place;
    about.append(dots(group), make("span", "", OUTCOMES[group.outcome]));
    if (group.verdict !== "none") about.append(make("span", `tag ${group.verdict}`, VERDICTS[group.verdict]));
    if (shelves.length > 1) about.append(make("span", "", group.shelf.run));
    if (group.iteration) about.append(make("span", "", `v${group.iteration}`));
    node.append(make("div", "name", group.id), about);
    node.title = group.id;
    return node;
  };
  const fill = () => {
    shown = groups.filter(matches);
    list.replaceChildren(...shown.map(item));
    found.textContent = `${shown.length} of ${groups.length} groups`;
    chosen = -1;
    if (shown.length) choose(0, false);
    else view.replaceChildren(make("p", "empty", "No group matches."));
  };
  const choose = (place, scroll) => {
    if (place < 0 || place >= shown.length || place === chosen) return;
    list.children[chosen]?.setAttribute("aria-selected", "false");
    chosen = place;
    const node = list.children[place];
    node.setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", node.id);
    if (scroll) node.scrollIntoView({ block: "nearest" });
    open(shown[place]);
  };
  for (const filter of filters) filter.addEventListener("input", fill);
  list.addEventListener("click", (event) => {
    const node = event.target.closest(".item");
    if (node) choose(Number(node.dataset.place), false);
  });
  list.addEventListener("keydown", (event) => {
    const page = 10, moves = { ArrowDown: chosen + 1, ArrowUp: chosen - 1, Home: 0, End: shown.length - 1,
      PageDown: Math.min(chosen + page, shown.length - 1), PageUp: Math.max(chosen - page, 0) };
    if (event.key in moves) choose(moves[event.key], true);
    else if (event.key === "Enter" || event.key === " ") view.querySelector(".cell")?.focus();
    else return;
    event.preventDefault();
  });

  // One group.
  const unpack = async (packed) => {
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return JSON.parse(await new Response(stream).text());
  };
  const open = async (group) => {
    const ticket = ++opened;
    let detail;
    try {
      detail = await unpack(group.packed);
    } catch {
      view.replaceChildren(make("p", "empty", "This browser cannot open the group; a newer one can (it needs DecompressionStream)."));
      return;
    }
    if (ticket !== opened) return; // another group was chosen meanwhile
    const panel = make("div", "detail");
    panel.hidden = true;
    view.replaceChildren(head(group), ...(group.signal ? [line(group)] : []), tree(group, detail, panel), panel);
  };
  const head = (group) => {
    const node = make("div"), title = make("h3", "", group.id);
    title.append(make("small", "", [group.task, OUTCOMES[group.outcome], group.iteration ? `policy version ${group.iteration}` : ""].filter(Boolean).join(" · ")));
    node.append(title, make("p", "said", decision(group)));
    return node;
  };
  const decision = (group) => {
    const gate = group.gate, rule = group.shelf;
    if (!gate) return "No gate decided on this group.";
    const who = { live: "The gate", audited: "The gate", watched: "The gate", replayed: rule.rule === "gate" ? "Replayed, the gate" : "The rule shown above" }[gate.made];
    const held = `${round(gate.score)} against ${round(gate.threshold)} at K = ${gate.step}`;
    const did = {
      live: "cut the group; how it would have ended is not known",
      audited: "flagged the group, and let it run to audit itself",
      watched: gate.flagged ? "flagged the group and let it run" : "let it run",
      replayed: gate.flagged ? (group.verdict === "over" ? "flags it, but nothing was left to cut" : "would cut it") : "would let it run",
    }[gate.made];
    const verdict = ["right", "wrong", "missed", "kept"].includes(group.verdict) ? `: ${VERDICTS[group.verdict]}` : "";
    return `${who} (${held}) ${did}${verdict}.`;
  };

  // The signal by K, with the thresholds of the rule.
  const drawn = ({ gate, shelf }) => {
    if (!gate || gate.made === "replayed") return Object.entries(shelf.thresholds);
    return shelf.recorded && gate.threshold !== null ? [[gate.step, gate.threshold]] : [];
  };
  const line = (group) => {
    const width = Math.max(280, Math.min(820, view.clientWidth)), height = 150, left = 48, right = 12, top = 16, bottom = 30, steps = group.horizon - 1;
    const values = group.signal, thresholds = drawn(group);
    const [low, high] = group.shelf.range;
    const x = (k) => left + ((k - 1) / Math.max(1, steps - 1)) * (width - left - right);
    const y = (value) => top + ((high - value) / (high - low)) * (height - top - bottom);
    const figure = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "line", role: "img", preserveAspectRatio: "xMinYMid meet" });
    figure.setAttribute("aria-label", `${group.shelf.signal} by step K: ${values.map(round).join(", ")}`);
    for (const tick of [low, (low + high) / 2, high]) {
      figure.append(draw("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), stroke: "var(--grid)" }));
      figure.append(draw("text", { x: left - 5, y: y(tick) + 4, "text-anchor": "end" }, round(tick)));
    }
    for (let k = 1; k <= steps; k++) {
      if (k === 1 || k % 5 === 0) figure.append(draw("text", { x: x(k), y: height - 16, "text-anchor": "middle" }, String(k)));
    }
    figure.append(draw("text", { x: width - right, y: height - 3, "text-anchor": "end" }, "step K"));
    figure.append(draw("text", { x: left, y: 10 }, group.shelf.signal));
    for (const [place, [k, value]] of thresholds.entries()) {
      figure.append(draw("line", { x1: x(k), x2: x(k), y1: top, y2: height - bottom, stroke: "var(--ink)", "stroke-dasharray": "4 3" }));
      figure.append(draw("line", { x1: x(k) - 9, x2: x(k) + 9, y1: y(value), y2: y(value), stroke: "var(--orange)", "stroke-width": 3 }));
      const before = x(k) > width - 110;
      figure.append(draw("text", { x: x(k) + (before ? -5 : 5), y: top + 12 + 13 * place, "text-anchor": before ? "end" : "start" }, `threshold ${round(value)}`));
    }
    const path = values.map((value, index) => (value === null ? "" : `${index && values[index - 1] !== null ? "L" : "M"}${x(index + 1)},${y(value)}`)).join("");
    figure.append(draw("path", { d: path, fill: "none", stroke: "var(--blue)", "stroke-width": 2 }));
    values.forEach((value, index) => {
      if (value === null) return;
      const decided = group.gate?.step === index + 1;
      figure.append(draw("circle", { cx: x(index + 1), cy: y(value), r: decided ? 5 : 2.5, fill: decided ? "var(--ink)" : "var(--blue)" }));
    });
    return figure;
  };

  // The prefix tree. A node is the trajectories that sent the same actions so far, and its place in the grid.
  const grow = (trajectories) => {
    const nodes = [], order = [];
    const place = (members, depth, parent) => {
      const first = order.length, branches = new Map(), ended = [];
      for (const member of members) {
        const action = trajectories[member].actions[depth];
        if (action === undefined) ended.push(member);
        else branches.set(action, [...(branches.get(action) ?? []), member]);
      }
      for (const member of ended) {
        nodes.push({ members: [member], depth, from: order.length, to: order.length + 1, end: true, parent });
        order.push(member);
      }
      for (const [action, part] of branches) {
        const node = { members: part, depth, from: order.length, action, parent, first: !parent || part.length < parent.members.length };
        nodes.push(node);
        place(part, depth + 1, node);
        node.to = order.length;
      }
      if (parent) parent.last = ended.length > 0 && branches.size === 0 || branches.size + ended.length > 1;
      return first;
    };
    place(trajectories.map((_, index) => index), 0, null);
    return { nodes, order };
  };
  const tree = (group, detail, panel) => {
    const { nodes, order } = grow(detail.trajectories);
    const gateStep = group.gate?.step ?? Infinity;
    const row = (depth) => String(depth + 2 + (depth >= gateStep ? 1 : 0)); // the gate has a row of its own after step K
    const scroll = make("div", "tree-scroll"), grid = make("div", "tree");
    grid.style.minWidth = `${76 + 77 * order.length}px`;
    grid.style.gridTemplateColumns = `72px repeat(${order.length}, minmax(0, 1fr))`;
    grid.setAttribute("role", "group");
    grid.setAttribute("aria-label", "Prefix tree; arrow keys move, Enter reads a step, Escape closes it");
    order.forEach((member, column) => {
      const trajectory = detail.trajectories[member], cut = trajectory.ending === "cut";
      const node = make("div", "head");
      node.append(make("b", "", `#${member}`), `${cut ? "cut" : trajectory.won ? "✓ won" : "✗ lost"} · ${trajectory.actions.length}`);
      node.style.gridRow = "1";
      node.style.gridColumn = String(column + 2);
      grid.append(node);
    });
    const longest = Math.max(0, ...detail.trajectories.map((trajectory) => trajectory.actions.length));
    for (let k = 1; k <= longest; k++) {
      const value = group.signal?.[k - 1];
      const node = make("div", "step", value === undefined || value === null ? String(k) : `${k} · ${value.toFixed(2)}`);
      node.style.gridRow = row(k - 1);
      node.style.gridColumn = "1";
      grid.append(node);
    }
    const cells = nodes.map((node) => {
      const cell = make("button", "cell");
      cell.append(make("span", "", node.end ? ENDINGS[detail.trajectories[node.members[0]].ending] ?? "ended" : detail.texts[node.action]));
      const wins = node.members.filter((member) => detail.trajectories[member].won).length;
      cell.type = "button";
      cell.tabIndex = -1;
      if (node.end) cell.classList.add("end");
      else if (group.outcome !== "cut") {
        if (wins === node.members.length) cell.classList.add("won");
        else if (!wins) cell.classList.add("lost");
      }
      if (node.first) cell.classList.add("first");
      if (node.last) cell.classList.add("last");
      if (!node.end && node.members.every((member) => detail.trajectories[member].match[node.depth] === 3)) cell.classList.add("refused");
      cell.style.gridRow = row(node.depth);
      cell.style.gridColumn = `${node.from + 2} / ${node.to + 2}`;
      cell.title = cell.textContent;
      cell.setAttribute("aria-pressed", "false");
      cell.setAttribute("aria-label", `${node.end ? "end" : `step ${node.depth + 1}`}, ${node.members.length} of ${order.length} trajectories: ${cell.textContent}`);
      grid.append(cell);
      return cell;
    });
    if (cells.length) cells[0].tabIndex = 0;
    if (gateStep <= longest) {
      const gate = make("div", "gate-line");
      gate.append(make("span", "", `${group.gate.made === "replayed" ? group.shelf.rule : "gate"}, K = ${gateStep}`));
      gate.style.gridRow = String(gateStep + 2);
      gate.style.gridColumn = "1 / -1";
      grid.append(gate);
    }
    const read = (place) => {
      cells.forEach((cell, index) => cell.setAttribute("aria-pressed", String(index === place)));
      panel.hidden = place < 0;
      if (place >= 0) explain(panel, nodes[place], detail, () => { read(-1); cells[place].focus(); });
    };
    const focus = (place) => {
      if (place < 0) return;
      cells.forEach((cell, index) => { cell.tabIndex = index === place ? 0 : -1; });
      cells[place].focus({ preventScroll: false });
      if (!panel.hidden) read(place);
    };
    const beside = (from, step) => {
      const row = nodes.map((_, index) => index).filter((index) => nodes[index].depth === nodes[from].depth).sort((a, b) => nodes[a].from - nodes[b].from);
      return row[row.indexOf(from) + step] ?? -1;
    };
    const below = (from, step) => nodes.findIndex((node) => node.depth === nodes[from].depth + step && node.from <= nodes[from].from && node.to > nodes[from].from);
    grid.addEventListener("click", (event) => {
      const place = cells.indexOf(event.target.closest(".cell"));
      if (place >= 0) { read(place); focus(place); }
    });
    grid.addEventListener("keydown", (event) => {
      const here = cells.indexOf(document.activeElement);
      if (here < 0) return;
      if (event.key === "ArrowRight") focus(beside(here, 1));
      else if (event.key === "ArrowLeft") focus(beside(here, -1));
      else if (event.key === "ArrowDown") focus(below(here, 1));
      else if (event.key === "ArrowUp") focus(below(here, -1));
      else if (event.key === "Escape") read(-1);
      else return;
      event.preventDefault();
    });
    scroll.append(grid);
    return scroll;
  };

  // What the policy read and said at one node, each distinct text once.
  const explain = (panel, node, detail, close) => {
    const button = make("button", "close", "Close");
    button.type = "button";
    button.addEventListener("click", close);
    const title = node.end ? `End of trajectory #${node.members[0]}` : `Step ${node.depth + 1}: ${detail.texts[node.action]}`;
    panel.replaceChildren(button, make("h4", "", title));
    const show = (name, read) => {
      const texts = new Map();
      for (const member of node.members) {
        const text = read(detail.trajectories[member]);
        if (text !== undefined) texts.set(text, [...(texts.get(text) ?? []), member]);
      }
      for (const [text, members] of texts) {
        panel.append(make("div", "label", `${name} (${members.map((member) => `#${member}`).join(", ")})`));
        panel.append(make("pre", "", text === -1 ? "not recorded" : typeof text === "number" ? detail.texts[text] : text));
      }
    };
    if (node.end) show("final observation", (trajectory) => trajectory.final);
    else {
      show("the policy read", (trajectory) => trajectory.seen[node.depth]);
      show("it said", (trajectory) => trajectory.said[node.depth]);
      show("its command was", (trajectory) => MATCHES[trajectory.match[node.depth]]);
    }
    panel.scrollTop = 0;
  };

  fill();
})();
