const REFRESH_MS = 5000, STALE_MS = 15000;
const page = document.getElementById("page");
let answered = performance.now();

const note = (text) => { const said = document.getElementById("note"); if (said.textContent !== text) said.textContent = text; };

const tick = () => {
  const age = performance.now() - answered;
  document.querySelector("#age time").textContent = `${Math.round(age / 1000)} s ago`;
  document.getElementById("age").classList.toggle("late", age > STALE_MS);
};

// Keep what the reader has opened, scrolled to, focused or begun to select.
const replaceBy = (next) => {
  const open = new Set([...page.querySelectorAll("details[open]")].map((it) => it.id));
  const scrolled = [...page.querySelectorAll(".scroll")].map((it) => [it.id, it.scrollTop, it.scrollLeft]);
  const focused = document.activeElement?.id;
  for (const it of next.querySelectorAll("details")) it.open = open.has(it.id);
  page.replaceChildren(...next.childNodes);
  for (const [id, top, left] of scrolled) document.getElementById(id)?.scrollTo(left, top);
  if (focused) document.getElementById(focused)?.focus({preventScroll: true});
};

const isSelecting = () => { const it = getSelection(); return !it.isCollapsed && page.contains(it.anchorNode); };

const refresh = async () => {
  try {
    if (isSelecting()) {
      note("Waits while text is selected.");
    } else {
      const answer = await fetch(location.href, {signal: AbortSignal.timeout(4000)});
      if (!answer.ok) throw new Error(answer.status);
      const text = await answer.text();
      // Parse only the main part: the other styles have another nonce, which this page's policy would reject.
      const main = text.slice(text.indexOf("<main"), text.indexOf("</main>"));
      if (!isSelecting()) {
        replaceBy(new DOMParser().parseFromString(main, "text/html").getElementById("page"));
        document.title = text.match(/<title>(.*)<\/title>/)[1];
        answered = performance.now();
      }
    }
  } catch {
    note("No answer from the service.");
  }
  tick();
  setTimeout(refresh, REFRESH_MS);
};
setTimeout(refresh, REFRESH_MS);
setInterval(tick, 1000);
