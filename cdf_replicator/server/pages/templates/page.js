const REFRESH_MS = 5000, STALE_MS = 15000;
const live = () => [...document.querySelectorAll(".live")];
let answered = performance.now();

const note = (text) => { const said = document.getElementById("note"); if (said.textContent !== text) said.textContent = text; };

const tick = () => {
  const age = performance.now() - answered;
  document.querySelector("#age time").textContent = `${Math.round(age / 1000)} s ago`;
  document.getElementById("age").classList.toggle("late", age > STALE_MS);
};

// Keep what the reader has opened, scrolled to, focused or begun to select.
const replaceBy = (next) => {
  const open = new Set([...document.querySelectorAll("details[open]")].map((it) => it.id));
  const scrolled = [...document.querySelectorAll(".scroll")].map((it) => [it.id, it.scrollTop, it.scrollLeft]);
  const focused = document.activeElement, href = focused?.getAttribute("href");
  for (const it of next.querySelectorAll("details")) it.open = open.has(it.id);
  for (const it of live()) it.replaceChildren(...next.getElementById(it.id).childNodes);
  for (const [id, top, left] of scrolled) document.getElementById(id)?.scrollTo(left, top);
  if (focused?.isConnected) return;
  const again = focused?.id ? document.getElementById(focused.id) : href && document.querySelector(`.live a[href="${CSS.escape(href)}"]`);
  again?.focus({preventScroll: true});
};

const isSelecting = () => { const it = getSelection(); return !it.isCollapsed && live().some((part) => part.contains(it.anchorNode)); };

const refresh = async () => {
  try {
    if (isSelecting()) {
      note("Waits while text is selected.");
    } else {
      const answer = await fetch(location.href, {signal: AbortSignal.timeout(4000)});
      if (!answer.ok) throw new Error(`The service answers ${answer.status}.`);
      const text = await answer.text();
      // Parse only the main part: the other styles have another nonce, which this page's policy would reject.
      const main = text.slice(text.indexOf("<main"), text.indexOf("</main>"));
      if (!isSelecting()) {
        replaceBy(new DOMParser().parseFromString(main, "text/html"));
        document.title = new DOMParser().parseFromString(text.match(/<title>.*<\/title>/)[0], "text/html").title;
        document.querySelector("link[rel=icon]").href = text.match(/<link rel="icon" href="([^"]*)"/)[1];
        answered = performance.now();
      }
    }
  } catch (error) {
    note(error.message.startsWith("The service") ? error.message : "No answer from the service.");
  }
  tick();
  setTimeout(refresh, REFRESH_MS);
};
setTimeout(refresh, REFRESH_MS);
setInterval(tick, 1000);
