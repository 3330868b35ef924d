// Requests by node:http and node:https. Unlike fetch, these take a CA and a client certificate, and never
// follow a redirect.

import { request as overHttp, type IncomingHttpHeaders, type IncomingMessage } from "node:http";
import { request as overHttps } from "node:https";
import type { SecureContextOptions } from "node:tls";

import { ConnectionFailed } from "./errors.js";

/** TLS settings of requests to the daemon: a CA of your own, or a client certificate. */
export type TlsOptions = Pick<SecureContextOptions, "ca" | "cert" | "key" | "pfx" | "passphrase">;

export interface Call {
  method: "GET" | "POST";
  url: URL;
  headers?: Record<string, string>;
  body?: string | Buffer;
  tls?: TlsOptions | undefined;
  /** Milliseconds for the whole exchange. */
  timeout: number;
  /** The largest body of an answer, in bytes. */
  maxSize: number;
  signal?: AbortSignal | undefined;
}

export interface Answer {
  status: number;
  headers: IncomingHttpHeaders;
  body: Buffer;
}

export const userAgent = "spendhook-js/0.1.0";

/**
 * Sends a request and reads the answer, whatever its status. It throws ConnectionFailed if there is no complete answer, and
 * the reason of the signal if that is aborted.
 */
export async function call(c: Call): Promise<Answer> {
  const stop = new AbortController();
  const abort = () => stop.abort(c.signal?.reason);
  const timer = setTimeout(() => stop.abort(new Error(`no answer within ${c.timeout / 1000} s`)), c.timeout);
  if (c.signal?.aborted) abort();
  c.signal?.addEventListener("abort", abort, { once: true });
  try {
    const answer = await open(c, stop.signal);
    return { status: answer.statusCode!, headers: answer.headers, body: await readAll(answer, c.maxSize) };
  } catch (error) {
    if (c.signal?.aborted) throw c.signal.reason;
    const cause = stop.signal.aborted ? (stop.signal.reason as Error) : (error as NodeJS.ErrnoException);
    throw new ConnectionFailed(`${c.method} ${c.url.origin}${c.url.pathname}: ${cause.message}`, !settled(cause), { cause });
  } finally {
    clearTimeout(timer);
    c.signal?.removeEventListener("abort", abort);
  }
}

/** Sends a request; the promise has the beginning of the answer. */
function open(c: Call, signal: AbortSignal): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const options = { method: c.method, headers: { "user-agent": userAgent, ...c.headers }, signal, ...c.tls };
    const req = (c.url.protocol === "https:" ? overHttps : overHttp)(c.url, options, resolve);
    req.on("error", (error: NodeJS.ErrnoException) => {
      // The server closed an idle connection just when it was used again. Every request of this library may be repeated.
      if (req.reusedSocket && error.code === "ECONNRESET") open(c, signal).then(resolve, reject);
      else reject(error);
    });
    req.end(c.body);
  });
}

async function readAll(answer: IncomingMessage, maxSize: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > maxSize) throw new TooLarge(`the answer has more than ${maxSize} bytes`); // ends the connection
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

class TooLarge extends Error {}

/** Reports whether waiting will not remove the reason: a certificate that is refused, or no TLS. */
function settled(error: NodeJS.ErrnoException): boolean {
  return (
    error instanceof TooLarge || /^(CERT_|ERR_TLS_|ERR_SSL_|UNABLE_TO_|SELF_SIGNED_|DEPTH_ZERO_|EPROTO)/.test(error.code ?? "")
  );
}
