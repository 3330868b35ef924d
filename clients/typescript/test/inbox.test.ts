import assert from "node:assert/strict";
import { DatabaseSync, type DatabaseSyncOptions } from "node:sqlite";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";

import { Inbox, MemoryStore, SqlStore, Verifier, type Store, type WebhookEvent, type WebhookRequest } from "../dist/index.js";
import { bodyOf, clock, now, secret, signed } from "./messages.js";
import { checkForgetting, checkNames, checkTransactions } from "./stores.js";

const verifier = new Verifier({ secrets: [secret], now: clock });

/** Makes an inbox in memory that keeps what it worked on. */
function made(work: (event: WebhookEvent) => unknown = () => {}) {
  const events: WebhookEvent[] = [];
  const failures: string[] = [];
  const inbox = new Inbox({
    verifier,
    store: new MemoryStore(),
    work: async (event) => {
      await work(event);
      events.push(event);
    },
    failed: (error) => failures.push(error.message),
  });
  const status = async (request: WebhookRequest) => (await inbox.handle(request)).status;
  return { inbox, events, failures, status };
}

test("an event is worked on once", async () => {
  const { inbox, events } = made();
  const request = signed("pay-1", bodyOf("pay-1", { amount: "12.50" }), { "webhook-sequence": "4711" });
  for (let n = 0; n < 3; n++) assert.deepEqual(await inbox.handle(request), { status: 204, body: "" });
  assert.equal(events.length, 1);
  const { body, ...rest } = events[0]!;
  assert.deepEqual(rest, {
    id: "pay-1",
    type: "PAYMENT_PAID",
    companyUuid: "0197a1b2-0000-7000-8000-000000000001",
    timestamp: new Date("2026-11-20T09:30:00Z"),
    metadata: { amount: "12.50" },
    sequence: 4711,
  });
  assert.deepEqual(body, request.body);
});

test("deliveries of one event at the same time", async () => {
  const { events, status } = made(() => new Promise(setImmediate));
  const request = signed("pay-1", bodyOf("pay-1"));
  assert.deepEqual(await Promise.all([1, 2, 3, 4].map(() => status(request))), [204, 204, 204, 204]);
  assert.equal(events.length, 1);
});

test("work that fails is repeated", async () => {
  let failing = 2;
  const { events, failures, status } = made(() => {
    if (failing-- > 0) throw new Error("no space");
  });
  const request = signed("pay-1", bodyOf("pay-1"));
  assert.deepEqual(
    [await status(request), await status(request), await status(request), await status(request)],
    [500, 500, 204, 204],
  );
  assert.equal(events.length, 1);
  assert.deepEqual(failures, ["event pay-1: no space", "event pay-1: no space"]);
});

test("what is not signed is refused", async () => {
  const { events, status } = made();
  const request = signed("pay-1", bodyOf("pay-1"));
  assert.equal(await status({ ...request, headers: {} }), 401);
  assert.equal(await status({ ...request, body: Buffer.from("{}") }), 401);
  assert.equal(await status({ ...signed("", "{}") }), 401);
  assert.equal(events.length, 0);
});

test("refused deliveries are reported, once a minute", async () => {
  let time = clock();
  const reported: string[] = [];
  const inbox = new Inbox({
    verifier: new Verifier({ secrets: [secret], now: () => time }),
    store: new MemoryStore(),
    work: () => {},
    failed: (error) => reported.push(error.message),
  });
  const unsigned = { ...signed("pay-1", bodyOf("pay-1")), headers: {} };
  const report = "a delivery was refused: webhook-id is missing or malformed; check the signing secret";
  for (const [later, count] of [
    [0, 1],
    [59_999, 1],
    [1, 2],
    [-3_600_000, 3],
  ] as const) {
    time += later;
    assert.deepEqual(await inbox.handle(unsigned), { status: 401, body: "the signature is not valid" });
    assert.deepEqual(reported, Array(count).fill(report));
  }
});

test("errors are logged unless somebody is told", async (t) => {
  const logged: string[] = [];
  t.mock.method(console, "error", (error: Error) => logged.push(error.message));
  const work = () => {
    throw new Error("no space");
  };
  const inbox = new Inbox({ verifier, store: new MemoryStore(), work });
  assert.equal((await inbox.handle(signed("pay-1", bodyOf("pay-1")))).status, 500);
  assert.deepEqual(logged, ["event pay-1: no space"]);
});

test("a body that is too large", async () => {
  const { status } = made();
  assert.equal(await status(signed("pay-1", Buffer.alloc(1 << 20, 32))), 204);
  assert.equal(await status(signed("pay-2", Buffer.alloc((1 << 20) + 1, 32))), 413);
});

test("a challenge is answered and not stored", async () => {
  const { inbox, events } = made();
  const request = signed("challenge-1", bodyOf("challenge-1", { challenge: "YCNQ2" }, "SUBSCRIBER_CHALLENGE"));
  assert.deepEqual(await inbox.handle(request), { status: 200, body: "YCNQ2" });
  assert.equal((await inbox.handle({ ...request, headers: {} })).status, 401);
  assert.equal(events.length, 0);
});

test("a handshake of CloudEvents", async () => {
  const asked = async (origin: string | undefined, from: string, method = "OPTIONS") => {
    const inbox = new Inbox({ verifier, store: new MemoryStore(), work: () => assert.fail("no event"), origin });
    return inbox.handle({ method, url: "/hooks", headers: { "WebHook-Request-Origin": from }, body: Buffer.alloc(0) });
  };
  const name = "hooks.example.com";
  const consent = { allow: "POST", "webhook-allowed-origin": name, "webhook-allowed-rate": "*" };
  for (const from of [name, "Hooks.Example.COM"])
    assert.deepEqual(await asked(name, from), { status: 200, body: "", headers: consent });
  const refusal = { status: 405, body: "only POST is allowed", headers: { allow: "POST" } };
  for (const from of ["evil.example.com", "*", ""]) assert.deepEqual(await asked(name, from), refusal);
  assert.deepEqual(await asked(name, name, "GET"), refusal);
  for (const from of [name, ""]) assert.deepEqual(await asked(undefined, from), refusal);
  assert.deepEqual(await asked("", ""), refusal);
});

test("bodies of other formats", async () => {
  const { events, status } = made();
  const cloud =
    '{"specversion":"1.0","id":"other","type":"PAYMENT_PAID","subject":"c","time":"2026-11-20T09:30:00Z","data":{}}';
  const thin =
    '{"id":"x","companyUuid":"c","event":"PAYMENT_PAID","timestamp":"2026-11-20T09:30:00Z","url":"https://example.com"}';
  const bodies = [
    cloud,
    thin,
    "no JSON",
    "",
    "[1]",
    "null",
    '{"event":5,"metadata":[],"timestamp":"yesterday"}',
    "[".repeat(50_000),
    Buffer.from([0xff, 0]),
  ];
  for (const [n, body] of bodies.entries()) assert.equal(await status(signed(`e-${n}`, body)), 204);
  assert.deepEqual(
    events.map(({ id }) => id),
    bodies.map((_, n) => `e-${n}`),
  );
  assert.deepEqual(
    events.map(({ type }) => type),
    ["PAYMENT_PAID", "PAYMENT_PAID", ...Array(7).fill(null)],
  );
  assert.deepEqual(
    events.map(({ companyUuid }) => companyUuid),
    ["c", "c", ...Array(7).fill(null)],
  );
  assert.deepEqual(events[0]!.timestamp, new Date("2026-11-20T09:30:00Z"));
  assert.ok(events.every((event) => !("metadata" in event) && event.sequence === null));
});

/** Opens a database in a folder that ends with the test. */
function database(t: TestContext, options: DatabaseSyncOptions = {}): () => DatabaseSync {
  const folder = mkdtempSync(join(tmpdir(), "spendhook-"));
  const open: DatabaseSync[] = [];
  t.after(() => {
    for (const db of open) db.close();
    rmSync(folder, { recursive: true });
  });
  return () => {
    const db = new DatabaseSync(join(folder, "inbox.db"), options);
    open.push(db);
    return db;
  };
}

for (const [name, makeStore] of [
  ["MemoryStore", async () => new MemoryStore()],
  [
    "SqlStore",
    async (t: TestContext) => {
      const store = new SqlStore(database(t)());
      await store.migrate();
      await store.migrate();
      return store;
    },
  ],
] as [string, (t: TestContext) => Promise<Store<unknown>>][]) {
  test(`${name}: ids and the cursor are kept, unless the transaction fails`, async (t) => {
    await checkTransactions(await makeStore(t));
  });

  test(`${name}: transactions run one after the other, and not within another`, async (t) => {
    const store = await makeStore(t);
    const steps: string[] = [];
    const run = (label: string) =>
      store.transaction(async () => {
        steps.push(`${label} begins`);
        await new Promise(setImmediate);
        steps.push(`${label} ends`);
      });
    await Promise.all([run("a"), run("b")]);
    assert.deepEqual(steps, ["a begins", "a ends", "b begins", "b ends"]);
    await assert.rejects(
      store.transaction(() => store.transaction(() => 1)),
      /within another/,
    );
    assert.equal(await store.transaction(() => 1), 1);
  });
}

test("SqlStore: work and id are committed together", async (t) => {
  const open = database(t);
  const db = open();
  const store = new SqlStore(db, { now: clock });
  await store.migrate();
  db.exec("CREATE TABLE payments (id TEXT)");
  let failing = true;
  const inbox = new Inbox<DatabaseSync>({
    verifier,
    store,
    work: async (event, tx) => {
      tx.prepare("INSERT INTO payments VALUES (?)").run(event.id);
      await new Promise(setImmediate);
      if (failing) throw new Error("not now");
    },
    failed: () => {},
  });
  const request = signed("pay-1", bodyOf("pay-1"), { "webhook-sequence": "17" });
  const rows = (table: string) =>
    open()
      .prepare(`SELECT * FROM ${table}`)
      .all()
      .map((row) => ({ ...row }));
  assert.equal((await inbox.handle(request)).status, 500);
  assert.deepEqual([rows("payments"), rows("spendhook_inbox")], [[], []]);
  failing = false;
  for (let n = 0; n < 2; n++) assert.equal((await inbox.handle(request)).status, 204);
  assert.deepEqual(rows("payments"), [{ id: "pay-1" }]);
  assert.deepEqual(rows("spendhook_inbox"), [{ inbox: "inbox", id: "pay-1", sequence: 17, received_at: now }]);
});

test("SqlStore: the options of the connection are for the work alone", async (t) => {
  const db = database(t, { readBigInts: true, returnArrays: true })();
  const store = new SqlStore(db);
  await store.migrate();
  await checkTransactions(store);
  assert.deepEqual(db.prepare("SELECT 1").get(), [1n]);
});

test("SqlStore: two connections of one process share a file", async (t) => {
  const open = database(t);
  const stores = [new SqlStore(open()), new SqlStore(open())];
  await stores[0]!.migrate();
  const added = await Promise.all(
    Array.from({ length: 20 }, (_, n) =>
      stores[n % 2]!.transaction(async (tx) => {
        await new Promise(setImmediate);
        return tx.add(`e-${n >> 1}`, null);
      }),
    ),
  );
  assert.equal(added.filter(Boolean).length, 10);
});

test("SqlStore: a writer that does not end", async (t) => {
  const open = database(t);
  const store = new SqlStore(open(), { busyTimeout: 0 });
  await store.migrate();
  const other = open();
  other.exec("BEGIN IMMEDIATE");
  await assert.rejects(
    store.transaction((tx) => tx.cursor()),
    /locked/,
  );
  other.exec("ROLLBACK");
  assert.equal(await store.transaction((tx) => tx.cursor()), "");
});

for (const [what, check] of [
  ["inboxes have names", checkNames],
  ["old ids are forgotten", checkForgetting],
] as const) {
  test(`SqlStore: ${what}`, async (t) => {
    const db = database(t)(); // the stores of one connection take turns
    await new SqlStore(db).migrate();
    await check((options) => new SqlStore(db, options));
  });
}
