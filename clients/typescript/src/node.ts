import type { IncomingMessage, ServerResponse } from "node:http";

import type { Inbox } from "./inbox.js";
import { maxBody, type WebhookResponse } from "./request.js";

/** A request of node:http, or of Express. */
export type NodeRequest = IncomingMessage & { originalUrl?: string; body?: unknown };

/** A request listener of node:http, and a handler of Express. */
export type NodeHandler = (request: NodeRequest, response: ServerResponse, next?: (error?: unknown) => void) => void;

const maxDrain = 2 * maxBody; // bytes of a body that is too large, which are read so that its sender sees the answer

/**
 * Returns a request listener for `createServer(nodeHandler(inbox))`, or a handler for Express: `app.all("/hooks",
 * nodeHandler(inbox))`. With app.post, Express answers OPTIONS itself, and the handshake of CloudEvents fails.
 *
 * The signature covers the bytes of the body, so no middleware may have parsed them: in Express, mount the handler before
 * express.json(), or use express.raw() for its path. Otherwise an error is thrown, or passed to `next`.
 */
export function nodeHandler(inbox: Inbox<any>): NodeHandler {
  return (request, response, next) => {
    if (request.readableDidRead && !Buffer.isBuffer(request.body)) {
      const error = new Error(
        "the body was read before the inbox got it, so its signature cannot be verified; " +
          "mount the inbox before express.json() and other body parsers",
      );
      if (!next) throw error;
      next(error);
      return;
    }
    answer(inbox, request).then(
      (result) => send(response, result),
      () => response.destroy(), // the connection was lost
    );
  };
}

async function answer(inbox: Inbox<any>, request: NodeRequest): Promise<WebhookResponse> {
  const body = request.readableDidRead ? (request.body as Buffer) : await readBody(request);
  if (!body) return { status: 413, body: "the body is too large" };
  return inbox.handle({
    method: request.method!,
    url: request.originalUrl ?? request.url!, // Express removes the path of a mount from url
    headers: request.headersDistinct,
    body,
  });
}

/** Returns the body; null if it is too large. It throws if the connection is lost. */
async function readBody(request: IncomingMessage): Promise<Buffer | null> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size <= maxBody) chunks.push(chunk);
    else if (size > maxDrain) break;
  }
  return size > maxBody ? null : Buffer.concat(chunks);
}

function send(response: ServerResponse, { status, body, headers = {} }: WebhookResponse): void {
  if (status === 413) response.setHeader("connection", "close"); // some of the body may be left
  if (body) response.setHeader("content-type", "text/plain; charset=utf-8").setHeader("x-content-type-options", "nosniff");
  response.writeHead(status, headers).end(body);
}
