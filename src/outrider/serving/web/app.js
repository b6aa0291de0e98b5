// The chat: sends, colours tokens by origin, compares the speeds of plain and speculative answers.

import { Live } from "./live.js";
import { html, short } from "./plots.js";
import { ServerError, chat } from "./stream.js";

const at = (id) => document.getElementById(id);
const KINDS = ["accepted", "recovered", "bonus"];
const messages = [];
const speeds = { speculative: null, plain: null };
const problems = { chat: "", live: "" };
let running = null;

/** A turn in the log; tokens go into its text as they come. */
class Entry {
  constructor(who, parent) {
    this.heading = html("h3", { textContent: who });
    this.text = html("div", { className: "text" });
    this.note = html("p", { className: "quiet" });
    this.article = html("article", {}, this.heading, this.text, this.note);
    this.counts = new Map();
    parent.append(this.article);
  }

  add(tokens, isSpeculative) {
    for (const { text, origin, source } of tokens) {
      const kind = isSpeculative && KINDS.includes(origin) ? origin : "plain";
      const span = html("span", { className: `token ${kind}`, textContent: text });
      if (kind !== "plain") {
        span.title = source ? `${origin}, drafted by ${source}` : origin;
        span.dataset.origin = origin;
        this.counts.set(origin, (this.counts.get(origin) ?? 0) + 1);
      }
      this.text.append(span);
    }
    const log = at("log");
    log.scrollTop = log.scrollHeight;
  }

  finish(done) {
    const kinds = KINDS.filter((kind) => this.counts.has(kind)).map((kind) => `${this.counts.get(kind)} ${kind}`);
    const parts = [`${done.numTokens} tokens at ${short(done.tokensPerSecond)} tokens/s`];
    if (kinds.length) parts.push(kinds.join(", "));
    if (done.finish === "length") parts.push("cut off at the token limit");
    this.note.textContent = parts.join(" · ");
  }
}

function say(text) {
  at("status").textContent = text;
}

/** Shows what is wrong with the chat or with the live view; an empty text takes it away. */
function problem(what, text) {
  if (text === problems[what]) return;
  problems[what] = text;
  const told = [...new Set(Object.values(problems).filter(Boolean))].join(" · ");
  at("problem").hidden = !told;
  at("problem").textContent = told;
}

function request(isSpeculative) {
  return {
    messages: messages.slice(),
    max_tokens: at("max-tokens").valueAsNumber || 256,
    temperature: at("temperature").valueAsNumber || 0,
    seed: at("seed").valueAsNumber || 0,
    stream: true,
    stream_options: { include_usage: true },
    return_token_origins: true,
    speculative: { enabled: isSpeculative },
  };
}

async function answer(isSpeculative, parent) {
  const name = isSpeculative ? "speculative" : "plain";
  const entry = new Entry(`Model, ${name}`, parent);
  entry.article.setAttribute("aria-busy", "true");
  try {
    const done = await chat(request(isSpeculative), {
      key: at("key").value,
      signal: running.signal,
      onTokens: (tokens) => entry.add(tokens, isSpeculative),
    });
    entry.finish(done);
    showSpeed(name, done);
    return done;
  } catch (error) {
    entry.note.textContent = error.name === "AbortError" ? "stopped" : `failed: ${error.message}`;
    throw error;
  } finally {
    entry.article.removeAttribute("aria-busy");
  }
}

function showSpeed(name, done) {
  speeds[name] = done;
  const cells = at(`speed-${name}`).querySelectorAll("td");
  const firstToken = done.firstToken === null ? "–" : `${short(done.firstToken * 1000)} ms`;
  const values = [short(done.tokensPerSecond), String(done.numTokens), firstToken, short(done.acceptanceLength)];
  values.forEach((value, index) => (cells[index].textContent = value));
}

function compare(plain, speculative) {
  const ratio = speculative.tokensPerSecond / plain.tokensPerSecond;
  const isSame = plain.text === speculative.text;
  const text = `Speculative is ${ratio.toFixed(2)} times as fast as plain; the texts are ${isSame ? "identical" : "different"}.`;
  at("speedup").textContent = text;
  return text;
}

/** Runs `work` with the controls locked; an error is shown, and the message is given back. */
async function busy(text, work) {
  running = new AbortController();
  lock(true);
  const start = messages.length;
  at("empty")?.remove();
  new Entry("You", at("log")).text.textContent = text;
  messages.push({ role: "user", content: text });
  at("message").value = "";
  try {
    say("The model answers.");
    say(await work());
    problem("chat", "");
  } catch (error) {
    // An answer that is not whole is no part of the conversation.
    messages.length = start;
    if (error.name === "AbortError") say("Stopped.");
    else fail(error, text);
  } finally {
    running = null;
    lock(false);
    at("message").focus();
  }
}

function fail(error, text) {
  at("message").value ||= text;
  say("The answer failed.");
  const isReached = error instanceof ServerError;
  problem("chat", isReached ? error.message : `the server cannot be reached (${error.message})`);
  if (error.status === 401) document.querySelector(".options").open = true;
}

function lock(isLocked) {
  for (const id of ["send", "both", "clear"]) at(id).disabled = isLocked;
  at("stop").disabled = !isLocked;
}

function typed() {
  const text = at("message").value.trim();
  if (!text) at("message").focus();
  return running ? "" : text;
}

function send() {
  const text = typed();
  if (!text) return;
  busy(text, async () => {
    const done = await answer(at("speculate").checked, at("log"));
    messages.push({ role: "assistant", content: done.text });
    return `Answer complete: ${done.numTokens} tokens at ${short(done.tokensPerSecond)} tokens per second. ${done.text}`;
  });
}

function runBoth() {
  const text = typed();
  if (!text) return;
  busy(text, async () => {
    const pair = html("div", { className: "pair" });
    at("log").append(pair);
    const plain = await answer(false, pair);
    const speculative = await answer(true, pair);
    messages.push({ role: "assistant", content: speculative.text });
    return compare(plain, speculative);
  });
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
at("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
at("both").addEventListener("click", runBoth);
at("stop").addEventListener("click", () => running?.abort());
at("clear").addEventListener("click", () => {
  messages.length = 0;
  at("log").replaceChildren();
  say("A new conversation.");
  at("message").focus();
});

new Live(() => at("key").value, (text) => problem("live", text)).run();
