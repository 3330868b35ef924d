import assert from "node:assert/strict";
import { request as begin, type RequestListener } from "node:http";
import { test, type TestContext } from "node:test";

import express from "express";

import { Inbox, MemoryStore, nodeHandler, Verifier, type WebhookRequest } from "../dist/index.js";
import { bodyOf, clock, newKey, origin, secret, signed, signedMessage } from "./messages.js";
import { serve } from "./server.js";

function made(verifier = new Verifier({ secrets: [secret], now: clock })) {
  const worked: string[] = [];
  const inbox = new Inbox({ verifier, store: new MemoryStore(), work: ({ id }) => worked.push(id), failed: () => {} });
  return { worked, inbox };
}

/** Sends deliveries to a listener. */
async function sender(t: TestContext, listener: RequestListener) {
  const served = await serve(listener);
  t.after(served.close);
  return async (path: string, { headers, body }: WebhookRequest) => {
    const all = new Headers(headers as Record<string, string>);
    all.set("content-type", "application/json");
    const answer = await fetch(served.url + path, { method: "POST", headers: all, body: body as Uint8Array<ArrayBuffer> });
    return [answer.status, await answer.text()] as const;
  };
}

const challenge = () => signed("c-1", bodyOf("c-1", { challenge: "é" }, "SUBSCRIBER_CHALLENGE"));

test("node:http", async (t) => {
  const { inbox, worked } = made();
  const send = await sender(t, nodeHandler(inbox));
  assert.deepEqual(await send("/hooks", signed("pay-1", bodyOf("pay-1"))), [204, ""]);
  assert.deepEqual(await send("/hooks", signed("pay-2", Buffer.from([0xff, 0xfe]))), [204, ""]);
  assert.deepEqual(await send("/hooks", challenge()), [200, "é"]);
  assert.equal((await send("/hooks", { ...signed("pay-1", ""), headers: {} }))[0], 401);
  assert.equal((await send("/hooks", signed("pay-3", Buffer.alloc(1 << 20, 32))))[0], 204);
  assert.equal((await send("/hooks", signed("pay-4", Buffer.alloc((1 << 20) + 1, 32))))[0], 413);
  assert.deepEqual(worked, ["pay-1", "pay-2", "pay-3"]);
});

test("a body that is cut, and one that does not end", async (t) => {
  const { inbox, worked } = made();
  const served = await serve(nodeHandler(inbox));
  t.after(served.close);
  const options = { method: "POST", headers: { "content-length": "10000000" } };
  await new Promise<void>((resolve) => {
    const cut = begin(served.url, options).on("error", () => resolve());
    cut.write("x", () => cut.destroy(new Error("cut")));
  });
  const status = await new Promise<number>((resolve) => {
    const endless = begin(served.url, options, (answer) => resolve(answer.statusCode!)).on("error", () => {});
    endless.write(Buffer.alloc(3 << 20));
  });
  assert.equal(status, 413);
  assert.deepEqual(worked, []);
});

test("Express: a route, and a mount with a router", async (t) => {
  const key = newKey("key");
  const keys = await serve((_, response) => response.end(JSON.stringify({ keys: [key.jwk] })));
  t.after(keys.close);
  const { inbox, worked } = made(new Verifier({ keysUrl: keys.url, origin, now: clock }));
  const app = express();
  app.use("/hooks", nodeHandler(inbox)); // removes /hooks from url, but that is signed
  app.use(express.json());
  app.post("/other", nodeHandler(made().inbox));
  const send = await sender(t, app);
  assert.deepEqual(await send("/hooks", signedMessage(key, "pay-1")), [204, ""]);
  assert.equal((await send("/hooks/elsewhere", signedMessage(key, "pay-2")))[0], 401);
  assert.deepEqual(worked, ["pay-1"]);
});

test("a handshake of CloudEvents", async (t) => {
  const inbox = new Inbox({
    verifier: new Verifier({ secrets: [secret] }),
    store: new MemoryStore(),
    work: () => {},
    origin: "spendhook.example.com",
  });
  const handler = nodeHandler(inbox);
  const app = express();
  app.all("/hooks", handler);
  app.all("/raw", express.raw({ type: "*/*" }), handler);
  app.all("/json", express.json(), handler);
  for (const [listener, path] of [
    [handler, "/hooks"],
    [app, "/hooks"],
    [app, "/raw"],
    [app, "/json"],
  ] as const) {
    const served = await serve(listener);
    t.after(served.close);
    for (const [from, status, origin] of [
      ["spendhook.example.com", 200, "spendhook.example.com"],
      ["evil.example.com", 405, null],
    ] as const) {
      const answer = await fetch(served.url + path, { method: "OPTIONS", headers: { "webhook-request-origin": from } });
      const { headers } = answer;
      assert.deepEqual([answer.status, headers.get("webhook-allowed-origin"), headers.get("allow")], [status, origin, "POST"]);
    }
  }
});

test("Express: a body that was parsed is an error", async (t) => {
  const { inbox, worked } = made();
  const app = express();
  app.use(express.json());
  app.post("/hooks", nodeHandler(inbox));
  const errors: string[] = [];
  app.use((error: Error, _request: express.Request, response: express.Response, _next: express.NextFunction) => {
    errors.push(error.message);
    response.sendStatus(500);
  });
  const send = await sender(t, app);
  assert.equal((await send("/hooks", signed("pay-1", bodyOf("pay-1"))))[0], 500);
  assert.match(errors[0]!, /before express.json\(\)/);
  assert.deepEqual(worked, []);
});

test("Express: a raw body", async (t) => {
  const { inbox, worked } = made();
  const app = express();
  app.post("/hooks", express.raw({ type: "*/*" }), nodeHandler(inbox));
  const send = await sender(t, app);
  assert.deepEqual(await send("/hooks", signed("pay-1", bodyOf("pay-1"))), [204, ""]);
  assert.deepEqual(worked, ["pay-1"]);
});

test("without next the error is thrown", () => {
  const handler = nodeHandler(made().inbox);
  assert.throws(() => handler({ readableDidRead: true, body: {} } as never, {} as never), /before express.json\(\)/);
});
