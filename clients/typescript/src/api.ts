import { request as overHttp, type IncomingMessage } from "node:http";
import { request as overHttps } from "node:https";
import { Readable } from "node:stream";

import createClient, { type Client } from "openapi-fetch";

import { Access, type AccessOptions } from "./access.js";
import type { paths } from "./api.gen.js";
import { userAgent, type TlsOptions } from "./http.js";

/** The typed client of all operations: `api.GET("/api/v1/events/{id}", { params: { path: { id } } })`. */
export type Api = Client<paths>;

/**
 * Returns a client of the whole API, with types from its OpenAPI document. It adds the token, and renews a refused one
 * once. Other errors are not repeated: an answer has `data` or `error`. No redirect is followed.
 */
export function createApi(options: AccessOptions): Api {
  const access = new Access(options);
  return createClient<paths>({ baseUrl: access.address("").href, fetch: (request) => send(access, request) });
}

async function send(access: Access, request: Request): Promise<Response> {
  const repeat = request.clone();
  const token = await access.token();
  const answer = await fetchOnce(request, token, access.tls);
  if (answer.status !== 401 || !access.discard(token)) return answer;
  await answer.body?.cancel();
  return fetchOnce(repeat, await access.token(), access.tls);
}

/** Is like fetch, but takes a CA and a client certificate, and follows no redirect. */
async function fetchOnce(request: Request, token: string, tls?: TlsOptions): Promise<Response> {
  const body = request.body && Buffer.from(await request.arrayBuffer());
  const headers = { "user-agent": userAgent, ...Object.fromEntries(request.headers), authorization: `Bearer ${token}` };
  const answer = await new Promise<IncomingMessage>((resolve, reject) => {
    const begin = request.url.startsWith("https:") ? overHttps : overHttp;
    begin(request.url, { method: request.method, headers, signal: request.signal, ...tls }, resolve)
      .on("error", reject)
      .end(body ?? undefined);
  });
  const status = answer.statusCode!;
  const empty = status === 204 || status === 205 || status === 304;
  if (empty) answer.resume();
  return new Response(empty ? null : (Readable.toWeb(answer) as ReadableStream), {
    status,
    statusText: answer.statusMessage ?? "",
    headers: Object.entries(answer.headersDistinct).flatMap(([name, values]) =>
      values!.map((value): [string, string] => [name, value]),
    ),
  });
}
