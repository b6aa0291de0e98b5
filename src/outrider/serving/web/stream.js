// Reads a streamed chat completion: server-sent events over fetch.

/** An answer the server refused or broke off; `status` is the HTTP status, 0 where there is none. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** Yields the data of every event of a response body. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (data.length) yield data.join("\n");
        data = [];
      } else if (line.startsWith("data:")) {
        data.push(line.slice(5).replace(/^ /, ""));
      }
    }
  }
}

/**
 * Sends a conversation and calls `onTokens` with each piece's tokens: {text, origin, source}.
 * Gives {text, numTokens, tokensPerSecond, firstToken, acceptanceLength, finish}; seconds, null
 * where the server does not say. The speed is that of the tokens after the first piece, so that
 * reading the prompt, which may be cached, is no part of it.
 */
export async function chat(request, { key, signal, onTokens }) {
  const started = performance.now();
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...authorization(key) },
    body: JSON.stringify(request),
    signal,
  });
  if (!response.ok) throw new ServerError(await message(response), response.status);
  let text = "";
  let numPieces = 0;
  let numFirst = 1;
  let first = null;
  let last = started;
  let usage = null;
  let finish = null;
  let report = null;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") break;
    const event = JSON.parse(data);
    if (event.error) throw new ServerError(event.error.message);
    if (event.usage) usage = event.usage;
    if (event.metrics?.speculative_decoding) report = event.metrics.speculative_decoding;
    const choice = event.choices?.[0];
    if (!choice) continue;
    finish = choice.finish_reason ?? finish;
    const content = choice.delta?.content ?? "";
    const tokens = choice.outrider_tokens ?? [];
    if (!content && !tokens.length) continue;
    last = performance.now();
    if (first === null) {
      first = last;
      numFirst = tokens.length || 1;
    }
    text += content;
    numPieces += 1;
    onTokens(tokens.length ? tokens : [{ text: content, origin: null, source: null }]);
  }
  if (finish === null) throw new ServerError("the answer was cut off");
  const numTokens = usage?.completion_tokens ?? numPieces;
  const seconds = first === null ? 0 : (last - first) / 1000;
  return {
    text,
    finish,
    numTokens,
    tokensPerSecond: seconds > 0 ? (numTokens - numFirst) / seconds : 0,
    firstToken: first === null ? null : (first - started) / 1000,
    acceptanceLength: report?.mean_acceptance_length ?? null,
  };
}

export function authorization(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function message(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}
