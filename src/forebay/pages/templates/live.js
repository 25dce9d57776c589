// The server reports versions of the page's parts; a part with another version than ours is fetched again.
const parts = Object.fromEntries([...document.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
const search = document.querySelector("input.search");
const connection = document.getElementById("connection");
const shown = {};
const wanted = {};
const loading = {};

const showStatus = (words) => {
  connection.textContent = words;
  connection.hidden = !words;
};

// Put new contents into a part; what the reader has opened or typed stays.
const put = (part, html) => {
  const open = [...part.querySelectorAll("details[open]>summary")].map((one) => one.textContent);
  const box = part.querySelector("input.filter");
  const typed = box && [box.value, document.activeElement === box, box.selectionStart];
  part.innerHTML = html;
  for (const one of part.querySelectorAll("details>summary")) {
    if (open.includes(one.textContent)) one.parentElement.open = true;
  }
  const next = part.querySelector("input.filter");
  if (next && typed && typed[0]) {
    next.value = typed[0];
    applyFilter(next);
  }
  if (next && typed && typed[1]) {
    next.focus();
    next.setSelectionRange(typed[2], typed[2]);
  }
};

const fetchPart = async (name) => {
  try {
    while (shown[name] !== wanted[name]) {
      const version = wanted[name];
      const asked = name === "results" ? search.value : "";
      const query = asked ? `?search=${encodeURIComponent(asked)}` : "";
      const answer = await fetch(`part/${name}${query}`);
      if (!answer.ok) break;
      const html = await answer.text();
      // If the reader has typed meanwhile, ask again.
      if (name === "results" && asked !== search.value) continue;
      put(parts[name], html);
      shown[name] = version;
    }
  } catch {
    // The stream of events reports that the connection is lost.
  }
};

const load = (name) => (loading[name] ??= fetchPart(name).finally(() => delete loading[name]));

let ended = false;
const refresh = () => {
  if (document.hidden && !ended) return;
  // A reader who selects text in a part keeps it.
  const selected = getSelection();
  const names = Object.keys(wanted).filter(
    (name) => name in parts && (selected.isCollapsed || !parts[name].contains(selected.anchorNode)),
  );
  return Promise.all(names.map(load));
};

const events = new EventSource("events");
events.onopen = () => showStatus("");
events.onerror = () => showStatus("The connection to the run is lost: it has ended, or this page waits for it.");
events.onmessage = (event) => {
  Object.assign(wanted, JSON.parse(event.data));
  refresh();
};
events.addEventListener("end", async () => {
  ended = true;
  await refresh();
  // The server waits for this before it stops.
  events.close();
  showStatus("The run has ended. This is its last state.");
});
document.addEventListener("visibilitychange", refresh);
search.addEventListener("input", () => {
  delete shown.results;
  refresh();
});
