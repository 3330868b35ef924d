import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createServer } from "node:https";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { test } from "node:test";

import { userAgent } from "../dist/http.js";
import { ConnectionFailed, createApi, EmitFailed, Emitter } from "../dist/index.js";
import { serve } from "./server.js";

test("the client of the whole API", async (t) => {
  const requests: string[] = [];
  let issued = 0;
  const served = await serve(async (request, response) => {
    const body = await text(request);
    if (request.url === "/base/oauth/token") return response.end(`{"access_token":"t-${++issued}","expires_in":3600}`);
    requests.push([request.method, request.url, request.headers.authorization, body].join(" "));
    if (request.headers.authorization === "Bearer t-1") return response.writeHead(401).end("{}");
    if (request.method === "DELETE") return response.writeHead(204).end();
    return response
      .writeHead(request.method === "GET" ? 404 : 202, { "content-type": "application/json" })
      .end('{"id":"a","code":"NOT_FOUND"}');
  });
  t.after(served.close);
  const api = createApi({ url: `${served.url}/base/`, credentials: { id: "i", secret: "s" } });
  const sent = await api.POST("/api/v1/events", { body: { id: "a", event: "E", timestamp: 5 } });
  assert.equal(sent.response.status, 202);
  const found = await api.GET("/api/v1/events/{id}", { params: { path: { id: "a b" } } });
  assert.equal(found.error?.code, "NOT_FOUND");
  assert.deepEqual(requests, [
    'POST /base/api/v1/events Bearer t-1 {"id":"a","event":"E","timestamp":5}',
    'POST /base/api/v1/events Bearer t-2 {"id":"a","event":"E","timestamp":5}',
    "GET /base/api/v1/events/a%20b Bearer t-2 ",
  ]);
});

test("the user agent has the version of the package", () => {
  const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8"));
  assert.equal(userAgent, `spendhook-js/${version}`);
});

test("a redirect is not followed", async (t) => {
  let requests = 0;
  const served = await serve((_, response) => {
    requests++;
    response.writeHead(307, { location: "/elsewhere" }).end();
  });
  t.after(served.close);
  const answer = await createApi({ url: served.url, token: "t" }).GET("/api/v1/event-types");
  assert.deepEqual([answer.response.status, requests], [307, 1]);
});

/** Makes a certificate for localhost, with its key, by the command openssl; null if there is none. */
function selfSigned(): string | null {
  const args =
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout - -subj /CN=localhost -addext subjectAltName=DNS:localhost";
  try {
    return execFileSync("openssl", args.split(" "), { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
  } catch {
    return null;
  }
}

test("a certificate of a CA of one's own", async (t) => {
  const pem = selfSigned();
  if (!pem) return t.skip("openssl is missing");
  const cert = pem.slice(pem.indexOf("-----BEGIN CERTIFICATE"));
  const server = createServer({ cert, key: pem }, (_, response) => {
    response.writeHead(202, { "content-type": "application/json" }).end('{"results":[{"status":"ACCEPTED"}],"content":[]}');
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.close();
    server.closeAllConnections();
  });
  const access = { url: `https://localhost:${(server.address() as AddressInfo).port}`, token: "t" };
  const event = { id: "a", event: "E", timestamp: 5 };
  const untrusting = new Emitter({ ...access, sleep: async () => assert.fail("it is tried again") });
  await assert.rejects(
    untrusting.send(event),
    (error) => error instanceof EmitFailed && error.cause instanceof ConnectionFailed && !error.cause.temporary,
  );
  const tls = { ca: cert };
  assert.equal((await new Emitter({ ...access, tls }).send(event)).status, "ACCEPTED");
  assert.deepEqual((await createApi({ ...access, tls }).GET("/api/v1/event-types")).response.status, 202);
});
