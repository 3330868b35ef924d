import assert from "node:assert/strict";
import type { IncomingMessage, ServerResponse } from "node:http";
import { text } from "node:stream/consumers";
import { test, type TestContext } from "node:test";

import { retryAfterOf } from "../dist/access.js";
import { backoff, endOfArray } from "../dist/emitter.js";
import {
  ApiError,
  EmitFailed,
  Emitter,
  EventRefused,
  type components,
  type EmitterOptions,
  type FieldProblem,
  type NewEvent,
} from "../dist/index.js";
import { serve } from "./server.js";

type Answerer = (response: ServerResponse, ids: string[], body: string) => void;

const accept: Answerer = (response, ids) =>
  results(
    response,
    ids.map((id) => ({ id, status: "ACCEPTED" })),
  );

function results(response: ServerResponse, all: unknown[], status = 202): void {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify({ results: all }));
}

function fails(status: number, headers = {}, code = "ON_PURPOSE"): Answerer {
  return (response) =>
    response
      .writeHead(status, { "content-type": "application/problem+json", ...headers })
      .end(JSON.stringify({ code, detail: "on purpose" }));
}

const item = (id: string, status: string, retryAfter?: number) => ({
  id,
  status,
  error: { code: "C", message: "m", retryAfter },
});

/** Serves a daemon that answers as the script says, and then accepts. The clock moves by what the emitter waits for. */
async function made(t: TestContext, script: Answerer[], options: Partial<EmitterOptions> = { token: "t" }) {
  const state = {
    bodies: [] as string[],
    authorizations: [] as string[],
    tokens: [] as [string | undefined, string][],
    waited: [] as number[],
    time: 1795167000_000,
    urls: [] as string[],
    issued: 0,
    refuse: null as Answerer | null, // answers requests for a token
    life: 3600,
  };
  const listener = async (request: IncomingMessage, response: ServerResponse) => {
    const body = await text(request);
    if (request.url === "/oauth/token") {
      state.tokens.push([request.headers.authorization, body]);
      if (state.refuse) return state.refuse(response, [], body);
      response.setHeader("content-type", "application/json");
      response.end(JSON.stringify({ access_token: `token-${++state.issued}`, token_type: "Bearer", expires_in: state.life }));
      return;
    }
    state.urls.push(request.url!);
    state.bodies.push(body);
    state.authorizations.push(request.headers.authorization!);
    (script.shift() ?? accept)(
      response,
      JSON.parse(body).map(({ id }: NewEvent) => id),
      body,
    );
  };
  const served = await serve((request, response) => void listener(request, response));
  t.after(served.close);
  const emitter = new Emitter({
    url: served.url,
    now: () => state.time,
    sleep: async (milliseconds) => {
      state.waited.push(milliseconds);
      state.time += milliseconds;
    },
    ...options,
  });
  return Object.assign(state, { emitter, url: served.url });
}

const at = "2026-11-20T09:30:00.000Z";
const events = (...ids: string[]): NewEvent[] => ids.map((id) => ({ id, event: "PAYMENT_PAID", timestamp: at }));

test("an event is sent as it is", async (t) => {
  const { emitter, bodies, authorizations, urls } = await made(t, [], { token: "t", company: "c-1" });
  const event: NewEvent = {
    id: "pay-1",
    event: "PAYMENT_PAID",
    timestamp: new Date(at),
    metadata: { name: "Zoë", amount: "12.50" },
    companyUuid: "c-2",
  };
  assert.deepEqual(await emitter.send(event), { id: "pay-1", status: "ACCEPTED" });
  assert.deepEqual(JSON.parse(bodies[0]!), [{ ...event, timestamp: at }]);
  assert.deepEqual([authorizations, urls], [["Bearer t"], ["/api/v1/events?companyUuid=c-1"]]);
});

test("an event without id or timestamp is not sent", async (t) => {
  const { emitter, bodies } = await made(t, []);
  for (const wrong of [
    { id: "" },
    { id: undefined },
    { timestamp: undefined },
    { timestamp: "" },
    { timestamp: new Date(NaN) },
    { metadata: { n: 1n } },
  ]) {
    await assert.rejects(emitter.sendAll([...events("a"), { ...events("b")[0]!, ...wrong } as NewEvent]), TypeError);
  }
  assert.deepEqual(await emitter.sendAll([]), []);
  assert.equal(bodies.length, 0);
});

test("refused events", async (t) => {
  const refuse: Answerer = (response, ids) =>
    results(response, [item(ids[0]!, "CONFLICT"), { id: ids[1], status: "DUPLICATE" }].slice(0, ids.length), 207);
  const { emitter } = await made(t, [refuse, refuse]);
  assert.deepEqual(await emitter.sendAll(events("a", "b")), [
    { id: "a", status: "CONFLICT", error: { code: "C", message: "m" } },
    { id: "b", status: "DUPLICATE" },
  ]);
  await assert.rejects(
    emitter.send(events("a")[0]!),
    (error) => error instanceof EventRefused && error.result.status === "CONFLICT" && error.message === "event a: CONFLICT: C: m",
  );
});

test("events that are refused for a while are sent again, alone", async (t) => {
  const { emitter, bodies, waited } = await made(t, [
    (response, [a, b, c, d]) =>
      results(
        response,
        [item(a!, "REJECTED", 2), item(b!, "REJECTED"), { id: c, status: "ACCEPTED" }, item(d!, "REJECTED", 5)],
        207,
      ),
    (response, [a, d]) => results(response, [{ id: a, status: "DUPLICATE" }, item(d!, "REJECTED", 0)], 207),
  ]);
  const got = await emitter.sendAll(events("a", "b", "c", "d"));
  assert.deepEqual(
    got.map(({ status }) => status),
    ["DUPLICATE", "REJECTED", "ACCEPTED", "ACCEPTED"],
  );
  assert.deepEqual(
    bodies.slice(1).map((body) => JSON.parse(body).map(({ id }: NewEvent) => id)),
    [["a", "d"], ["d"]],
  );
  assert.deepEqual(waited, [5000, 1000]);
});

test("events that stay refused end it when the time is over", async (t) => {
  const refuse: Answerer = (response, ids) =>
    results(
      response,
      ids.map((id) => (id === "b" ? item(id, "REJECTED", 25) : { id, status: "ACCEPTED" })),
      207,
    );
  const { emitter, bodies } = await made(t, Array(10).fill(refuse));
  await assert.rejects(
    emitter.sendAll(events("a", "b")),
    (error) => error instanceof EmitFailed && error.results[0]?.status === "ACCEPTED" && error.results[1]?.status === "REJECTED",
  );
  assert.equal(bodies.length, 3);
});

test("the same bytes are sent again", async (t) => {
  const cut: Answerer = (response) => response.destroy();
  const cutShort: Answerer = (response) => {
    response
      .writeHead(202, { "content-type": "application/json", "content-length": "1000" })
      .write('{"results":[{"id"', () => response.destroy());
  };
  const date = new Date(1795167000_000 + 5000).toUTCString();
  const { emitter, bodies, waited } = await made(t, [
    cut,
    cutShort,
    fails(502),
    fails(503),
    fails(504),
    fails(429, { "retry-after": "2" }),
  ]);
  assert.equal((await emitter.sendAll(events("a", "b"))).length, 2);
  assert.equal(bodies.length, 7);
  assert.equal(new Set(bodies).size, 1);
  assert.equal(waited[5], 2000);
  const dated = await made(t, [fails(503, { "retry-after": date })]);
  await dated.emitter.sendAll(events("a"));
  assert.deepEqual(dated.waited, [5000]);
});

test("it gives up when the time is over", async (t) => {
  const { emitter, waited } = await made(t, Array(100).fill(fails(503)));
  await assert.rejects(
    emitter.sendAll(events("a")),
    (error) => error instanceof EmitFailed && error.cause instanceof ApiError && error.results[0] === null,
  );
  assert.ok(waited.reduce((sum, wait) => sum + wait) <= 60_000);
  const asked = await made(t, [fails(429, { "retry-after": "61" })]);
  await assert.rejects(asked.emitter.sendAll(events("a")), EmitFailed);
  assert.equal(asked.bodies.length, 1);
});

test("a signal ends it", async (t) => {
  const stop = new AbortController();
  const { emitter, bodies } = await made(t, [
    accept,
    (response) => (stop.abort(new Error("stopped")), fails(503)(response, [], "")),
  ]);
  const many = events(...Array.from({ length: 1001 }, (_, n) => `e-${n}`));
  await assert.rejects(emitter.sendAll(many, { signal: stop.signal }), (error) => {
    assert.ok(error instanceof EmitFailed);
    assert.match(error.message, /stopped/);
    assert.deepEqual(error.results.slice(999), [{ id: "e-999", status: "ACCEPTED" }, null]);
    return true;
  });
  assert.equal(bodies.length, 2);
});

test("other answers end it, with the results so far", async (t) => {
  const many = events(...Array.from({ length: 1500 }, (_, n) => `e-${n}`));
  for (const last of [
    fails(400),
    fails(422),
    fails(403),
    fails(500),
    fails(307, { location: "/elsewhere" }),
    fails(200),
    ((response) => results(response, [])) as Answerer,
  ]) {
    const { emitter, bodies } = await made(t, [accept, last]);
    await assert.rejects(emitter.sendAll(many), (error) => {
      assert.ok(error instanceof EmitFailed && error.cause instanceof ApiError);
      assert.equal(error.results.filter((result) => result?.status === "ACCEPTED").length, 1000);
      assert.equal(error.results[1000], null);
      return true;
    });
    assert.equal(bodies.length, 2);
  }
});

const proxy: Answerer = (response) => response.writeHead(413).end();

test("an array that a proxy refuses is divided", async (t) => {
  const narrow: Answerer = (response, ids, body) => (ids.length > 2 || body.length > 1000 ? proxy : accept)(response, ids, body);
  const { emitter, bodies } = await made(t, Array(100).fill(narrow));
  const all = events("a", "b", "c", "d", "e", "f", "g");
  const accepted = all.map(({ id }) => ({ id, status: "ACCEPTED" }));
  assert.deepEqual(await emitter.sendAll(all), accepted);
  assert.deepEqual(
    bodies.map((body) => JSON.parse(body).length),
    [7, 3, 1, 2, 4, 2, 2],
  );
  all[4]!.metadata = { text: "x".repeat(1000) };
  assert.deepEqual(
    await emitter.sendAll(all),
    accepted.map((result) =>
      result.id === "e" ? { id: "e", status: "REJECTED", error: { code: "PAYLOAD_TOO_LARGE", message: "" } } : result,
    ),
  );
  await assert.rejects(
    emitter.send(all[4]!),
    (error) => error instanceof EventRefused && error.message === "event e: REJECTED: PAYLOAD_TOO_LARGE",
  );
});

test("halves that are refused for a while are sent again together", async (t) => {
  const later: Answerer = (response, ids) => results(response, [item(ids[0]!, "REJECTED", 2)], 207);
  const { emitter, bodies, waited } = await made(t, [proxy, later, later]);
  assert.deepEqual(
    (await emitter.sendAll(events("a", "b"))).map(({ status }) => status),
    ["ACCEPTED", "ACCEPTED"],
  );
  assert.deepEqual([bodies[3], waited], [bodies[0], [2000]]);
});

test("an event that cannot be read is a result", async (t) => {
  const invalid: FieldProblem[] = [{ field: "/0", code: "X", message: "m" } satisfies components["schemas"]["FieldError"]];
  const problem = { code: "MALFORMED_BODY", detail: "d", errors: invalid };
  const malformed: Answerer = (response, ids, body) =>
    ids.includes("b") ? response.writeHead(400).end(JSON.stringify(problem)) : accept(response, ids, body);
  const { emitter } = await made(t, Array(100).fill(malformed));
  const { code, detail: message, errors } = problem;
  assert.deepEqual(await emitter.sendAll(events("a", "b", "c")), [
    { id: "a", status: "ACCEPTED" },
    { id: "b", status: "REJECTED", error: { code, message, errors } },
    { id: "c", status: "ACCEPTED" },
  ]);
  const coded = await made(t, [fails(413)]);
  assert.deepEqual((await coded.emitter.sendAll(events("a")))[0]!.error, { code: "ON_PURPOSE", message: "on purpose" });
});

test("another refusal of one event, or of a token, is an error of the call", async (t) => {
  const failed = (status: number) => (error: unknown) =>
    error instanceof EmitFailed && error.results[0] === null && (error.cause as ApiError).status === status;
  for (const status of [400, 422]) {
    const { emitter } = await made(t, [fails(status)]);
    await assert.rejects(emitter.sendAll(events("a")), failed(status));
  }
  for (const [status, code] of [[400], [413], [400, "MALFORMED_BODY"]] as [number, string?][]) {
    const state = await made(t, [], { credentials: { id: "i", secret: "s" } });
    state.refuse = fails(status, {}, code);
    await assert.rejects(state.emitter.sendAll(events("a")), failed(status));
    assert.equal(state.bodies.length, 0);
  }
});

test("an error in the second half keeps the results of the first", async (t) => {
  const { emitter } = await made(t, [proxy, accept, fails(422)]);
  await assert.rejects(emitter.sendAll(events("a", "b")), (error) => {
    assert.ok(error instanceof EmitFailed);
    assert.deepEqual(error.results, [{ id: "a", status: "ACCEPTED" }, null]);
    return true;
  });
});

test("arrays are bounded", () => {
  assert.equal(endOfArray(Array(2500).fill("{}"), 0), 1000);
  assert.equal(endOfArray(Array(2500).fill("{}"), 2000), 2500);
  const large = Array(25).fill("é".repeat(125_000));
  assert.equal(endOfArray(large, 0), 16);
  assert.equal(endOfArray(["x".repeat(5 << 20), "x"], 0), 1);
});

test("pauses", () => {
  assert.deepEqual(
    [0, 1, 2, 6, 50].map((attempt) => backoff(attempt, 1)),
    [500, 1000, 2000, 30_000, 30_000],
  );
  assert.equal(backoff(0, 0), 250);
  const now = Date.UTC(2026, 10, 20);
  assert.equal(retryAfterOf("7", now), 7);
  assert.equal(retryAfterOf("Fri, 20 Nov 2026 00:00:09 GMT", now), 9);
  assert.equal(retryAfterOf("Thu, 19 Nov 2026 00:00:00 GMT", now), 0);
  for (const header of [undefined, "", "-1", "soon", "1.5", "2026-11-20"]) assert.equal(retryAfterOf(header, now), null);
});

test("a token is kept, and renewed before its end", async (t) => {
  const state = await made(t, [], { credentials: { id: "a:b c", secret: "ü/+", scope: "events:write" } });
  await Promise.all([1, 2, 3].map(() => state.emitter.send(events("a")[0]!)));
  state.time += 3569_000;
  await state.emitter.send(events("a")[0]!);
  assert.equal(state.issued, 1);
  const basic = Buffer.from("a%3Ab+c:%C3%BC%2F%2B").toString("base64");
  assert.deepEqual(state.tokens, [[`Basic ${basic}`, "grant_type=client_credentials&scope=events%3Awrite"]]);
  state.time += 1000;
  await state.emitter.send(events("a")[0]!);
  assert.equal(state.issued, 2);
});

test("a refused token is renewed once", async (t) => {
  const state = await made(t, [fails(401)], { credentials: { id: "i", secret: "s" } });
  await state.emitter.send(events("a")[0]!);
  assert.deepEqual(state.authorizations, ["Bearer token-1", "Bearer token-2"]);
  const refused = await made(t, Array(5).fill(fails(401)), { credentials: { id: "i", secret: "s" } });
  await assert.rejects(refused.emitter.send(events("a")[0]!), EmitFailed);
  assert.equal(refused.bodies.length, 2);
  const fixed = await made(t, Array(5).fill(fails(401)));
  await assert.rejects(fixed.emitter.send(events("a")[0]!), EmitFailed);
  assert.equal(fixed.bodies.length, 1);
});

test("a token is not sent in the clear", () => {
  const access = { token: "t" };
  for (const url of [
    "http://example.com",
    "http://127.0.0.1.example.com",
    "http://10.0.0.1",
    "ftp://localhost",
    "http://u:p@localhost",
    "http://localhost?x",
    "localhost",
  ]) {
    assert.throws(() => new Emitter({ url, ...access }), TypeError, url);
  }
  for (const url of ["https://example.com", "http://localhost:1", "http://127.0.0.9", "http://[::1]:80/base/"])
    new Emitter({ url, ...access });
  new Emitter({ url: "http://example.com", ...access, insecure: true });
  assert.throws(() => new Emitter({ url: "https://example.com" }), TypeError);
  assert.throws(() => new Emitter({ url: "https://example.com", token: "t", credentials: { id: "i", secret: "s" } }), TypeError);
});
