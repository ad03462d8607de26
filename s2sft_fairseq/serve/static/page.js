// The page of `s2sft serve`. Texts of the model and of the user are only ever set as textContent.
"use strict";

const byId = (id) => document.getElementById(id);
const percent = (value) => `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
const MOST_NAMED = 5; // tokens of the source that are told in words
let running = null; // of the last click on Generate; a new one ends it
let chosen = null; // token

function say(text, isError = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("error", isError);
}

function element(name, className, text) {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

function colour(token, share) {
  token.style.setProperty("--p", String(share));
  return token;
}

async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const key = byId("key").value.trim();
  if (key) headers.Authorization = `Bearer ${key}`;
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (answer.status === 401) {
    byId("key-row").hidden = false;
    byId("key").focus();
  }
  if (!answer.ok) throw new Error(found.error);
  return found;
}

function request() {
  const body = { source: byId("source").value };
  for (const input of document.querySelectorAll("fieldset input")) {
    if (input.value !== "") body[input.name] = Number(input.value);
  }
  return body;
}

// Shows what an empty option means: the value of the model's folder.
async function showDefaults() {
  const answer = await fetch("defaults");
  if (!answer.ok) return;
  for (const [name, value] of Object.entries(await answer.json())) {
    if (value !== null) byId(name).placeholder = String(value);
  }
}

async function generate(event) {
  event.preventDefault();
  running?.abort();
  const mine = (running = new AbortController());
  const body = request();
  byId("generate").disabled = true;
  byId("results").replaceChildren();
  byId("attention").hidden = true;
  byId("legend").hidden = true;
  say("Generating …");
  const start = performance.now();
  try {
    const [best] = (await ask("generate", body, mine.signal)).results;
    byId("results").replaceChildren(...best.map((each, index) => hypothesis(each, index, body.source)));
    byId("legend").hidden = false;
    const count = best.length === 1 ? "1 text" : `${best.length} texts`;
    say(`${count} in ${((performance.now() - start) / 1000).toFixed(2)} seconds.`);
  } catch (error) {
    if (error.name !== "AbortError") say(`Error: ${error.message}`, true);
  } finally {
    if (running === mine) byId("generate").disabled = false;
  }
}

function hypothesis(found, index, source) {
  const item = document.createElement("li");
  const tokens = element("div", "tokens", "");
  tokens.setAttribute("role", "toolbar");
  tokens.setAttribute("aria-label", `Tokens of text ${index + 1}`);
  let attention = null; // asked for once, when a token is chosen
  found.tokens.forEach((text, position) => {
    const share = Math.exp(found.log_probs[position]);
    const token = colour(element("button", "token", text), share);
    token.type = "button";
    token.tabIndex = position === 0 ? 0 : -1;
    token.title = `probability ${percent(share)}`;
    token.setAttribute("aria-label", `${text}, probability ${percent(share)}`);
    token.setAttribute("aria-pressed", "false");
    token.addEventListener("click", () => {
      attention ??= ask("attention", { source, target: found.text });
      attention.catch(() => { attention = null; });
      choose(token, position, attention);
    });
    tokens.append(token);
  });
  tokens.addEventListener("keydown", walk);
  item.append(element("p", "text", found.text), element("p", "score", `score ${found.score.toFixed(4)}`), tokens);
  return item;
}

function walk(event) {
  const tokens = [...event.currentTarget.children];
  const here = tokens.indexOf(document.activeElement);
  const goal = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: tokens.length - 1 }[event.key];
  if (goal === undefined || here < 0 || !tokens[goal]) return;
  event.preventDefault();
  tokens[here].tabIndex = -1;
  tokens[goal].tabIndex = 0;
  tokens[goal].focus();
}

async function choose(token, position, attention) {
  chosen?.setAttribute("aria-pressed", "false");
  chosen = token;
  token.setAttribute("aria-pressed", "true");
  try {
    const found = await attention;
    if (chosen === token) showAttention(token.textContent, found.source_tokens, found.weights[position]);
  } catch (error) {
    say(`Error: ${error.message}`, true);
  }
}

function showAttention(name, tokens, weights) {
  if (!weights) return say(`No attention is known of ${name}.`, true);
  const most = Math.max(...weights, 1e-9);
  byId("attention-tokens").replaceChildren(...tokens.map((text, index) => {
    const token = colour(element("span", "token", text), weights[index] / most);
    token.title = percent(weights[index]);
    return token;
  }));
  const order = weights.map((_, index) => index).sort((a, b) => weights[b] - weights[a]).slice(0, MOST_NAMED);
  const words = order.map((index) => `${tokens[index]} (${percent(weights[index])})`).join(", ");
  byId("attention-summary").textContent = `${name} looks most at ${words}.`;
  byId("attention").hidden = false;
}

byId("form").addEventListener("submit", generate);
byId("source").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
});
for (const token of document.querySelectorAll("#legend .token")) colour(token, Number(token.dataset.p));
showDefaults();
