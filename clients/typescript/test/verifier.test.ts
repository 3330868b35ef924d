import assert from "node:assert/strict";
import { test } from "node:test";

import { InvalidMessage, KeysUnavailable, Verifier } from "../dist/index.js";
import { lifeOf } from "../dist/keys.js";
import { clock, newKey, now, origin, secret, signed, signedMessage, signedV1a } from "./messages.js";
import { serve } from "./server.js";

test("settings that are not safe are refused", () => {
  for (const options of [
    {},
    { secrets: [] },
    { secrets: [""] },
    { secrets: ["whsec_"] },
    { secrets: ["whsec_no base64"] },
    { secrets: [secret, `whsec_${Buffer.alloc(23).toString("base64")}`] },
    { origin },
    { secrets: [secret], origin },
    { keysUrl: "http://127.0.0.1/", origin: "hooks.example.com" },
    { keysUrl: "http://127.0.0.1/", origin: "https://hooks.example.com?" },
    { keysUrl: "http://127.0.0.1/", origin: `${origin}/` },
    { keysUrl: "no URL" },
    { secrets: [secret], tolerance: NaN },
  ]) {
    assert.throws(() => new Verifier(options), TypeError, JSON.stringify(options));
  }
});

test("the tolerance can be set", async () => {
  const later = (seconds: number) => new Verifier({ secrets: [secret], tolerance: 10, now: () => (now + seconds) * 1000 });
  await later(10).verify(signed("pay-1", "{}"));
  await assert.rejects(later(11).verify(signed("pay-1", "{}")), InvalidMessage);
});

test("headers in any form", async () => {
  const verifier = new Verifier({ secrets: [secret], now: clock });
  const request = signed("pay-1", "{}");
  const entries = Object.entries(request.headers) as [string, string][];
  await verifier.verify({ ...request, headers: new Headers(entries) });
  await verifier.verify({
    ...request,
    headers: Object.fromEntries(entries.map(([name, value]) => [name.toUpperCase(), [value]])),
  });
  const twice = { ...(request.headers as Record<string, string>), "Webhook-Id": "pay-2" };
  await assert.rejects(verifier.verify({ ...request, headers: twice }), InvalidMessage);
  const signatures = ["v1,AAAA", (request.headers as Record<string, string>)["webhook-signature"]!];
  await verifier.verify({
    ...request,
    headers: { ...(request.headers as Record<string, string>), "webhook-signature": signatures },
  });
});

/** Serves a JWK Set that tests change. */
async function published() {
  const state = {
    status: 200,
    body: "",
    cacheControl: "max-age=600",
    reads: 0,
    time: now * 1000,
    url: "",
    close: async () => {},
  };
  const served = await serve((_, response) => {
    state.reads++;
    response.writeHead(state.status, { "cache-control": state.cacheControl, location: "/elsewhere" }).end(state.body);
  });
  return Object.assign(state, served, {
    set: (...keys: { jwk: unknown }[]) => (state.body = JSON.stringify({ keys: keys.map(({ jwk }) => jwk) })),
  });
}

for (const [kind, message, more] of [
  ["v1a", signedV1a, {}],
  ["RFC 9421", signedMessage, { origin }],
] as const) {
  test(`${kind}: keys are kept, and read again for an unknown one after five seconds`, async (t) => {
    const keys = await published();
    t.after(keys.close);
    const [first, second] = [newKey("first"), newKey("second")];
    const started = keys.time;
    // The clock of the message stands still; that of the keys is the same one, so it moves less than the tolerance.
    const verifier = new Verifier({ keysUrl: keys.url, ...more, now: () => keys.time });
    keys.set(first);
    await Promise.all([1, 2, 3].map(() => verifier.verify(message(first))));
    assert.equal(keys.reads, 1);
    keys.set(first, second);
    await assert.rejects(verifier.verify(message(second)), InvalidMessage);
    assert.equal(keys.reads, 1);
    keys.time = started + 5000;
    await verifier.verify(message(second));
    assert.equal(keys.reads, 2);
    const strange = newKey("strange");
    for (let n = 0; n < 3; n++) await assert.rejects(verifier.verify(message(strange)), InvalidMessage);
    assert.equal(keys.reads, 2);
  });

  test(`${kind}: a clock that jumps back does not lengthen the life of keys`, async (t) => {
    const keys = await published();
    t.after(keys.close);
    const [key, other] = [newKey("key"), newKey("other")];
    const verifier = new Verifier({ keysUrl: keys.url, ...more, now: () => keys.time });
    keys.set(key);
    await verifier.verify(message(key));
    keys.time -= 1000;
    keys.set(other);
    await assert.rejects(verifier.verify(message(key)), InvalidMessage);
    assert.equal(keys.reads, 2);
    keys.status = 503;
    keys.time -= 1000;
    await assert.rejects(verifier.verify(message(key)), KeysUnavailable);
    keys.time -= 1000;
    await assert.rejects(verifier.verify(message(key)), KeysUnavailable);
    assert.equal(keys.reads, 4);
  });

  test(`${kind}: keys that cannot be read`, async (t) => {
    const keys = await published();
    t.after(keys.close);
    const key = newKey("key");
    const verifier = new Verifier({ keysUrl: keys.url, ...more, now: () => keys.time });
    const failures: [number, string][] = [
      [302, ""],
      [503, "{}"],
      [200, "no JSON"],
      [200, "[]"],
      [200, '{"keys":{}}'],
      [200, " ".repeat(65 << 10)],
    ];
    for (const [status, body] of failures) {
      Object.assign(keys, { status, body, reads: 0 });
      await assert.rejects(verifier.verify(message(key)), KeysUnavailable);
      await assert.rejects(verifier.verify(message(key)), KeysUnavailable);
      assert.equal(keys.reads, 1, `${status} ${body.slice(0, 20)}`);
      keys.time += 5000;
    }
    keys.status = 200;
    keys.set(key);
    await verifier.verify(message(key));
  });

  test(`${kind}: a message that no key can make valid does not read the keys`, async (t) => {
    const keys = await published();
    t.after(keys.close);
    const verifier = new Verifier({ keysUrl: keys.url, ...more, now: () => keys.time });
    await assert.rejects(verifier.verify(signed("pay-1", "{}")), InvalidMessage);
    assert.equal(keys.reads, 0);
  });
}

test("blanks around the id, which a signature does not cover, are refused", async (t) => {
  const key = newKey("key");
  const keys = await published();
  t.after(keys.close);
  keys.set(key);
  const verifier = new Verifier({ keysUrl: keys.url, origin, now: clock });
  const request = signedMessage(key);
  await verifier.verify(request);
  for (const id of ["pay-1 ", "\tpay-1", [" pay-1"]]) {
    const headers = { ...(request.headers as Record<string, string>), "Webhook-Id": id };
    await assert.rejects(verifier.verify({ ...request, headers }), InvalidMessage);
  }
});

test("Cache-Control", () => {
  const minute = 60_000;
  for (const [header, life] of [
    ["", 5 * minute],
    ["no-store", 5 * minute],
    ["max-age=10", 5 * minute],
    ["public,Max-Age=3600", 60 * minute],
    ["max-age=99999999", 24 * 60 * minute],
    ["max-age=99999999999999999999", 5 * minute],
    ["max-age=-1", 5 * minute],
  ] as const) {
    assert.equal(lifeOf(header), life, header);
  }
});
