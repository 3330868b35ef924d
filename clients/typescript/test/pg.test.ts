import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";

import pg from "pg";

import { Inbox, PgStore, Verifier, type PgClient, type StoreOptions } from "../dist/index.js";
import { tables } from "../dist/statements.js";
import { bodyOf, clock, now, secret, signed } from "./messages.js";
import { checkForgetting, checkNames, checkTransactions } from "./stores.js";

const url = process.env["SPENDHOOK_POSTGRES"];

test("a connection whose ROLLBACK fails is dropped", async () => {
  const failure = new Error("time-out");
  const steps: unknown[] = [];
  const client: PgClient = {
    query: async (text) => {
      steps.push(text);
      if (text === "ROLLBACK") throw failure;
      return { command: text, rowCount: 0, rows: [] };
    },
    release: (error) => steps.push(error),
  };
  const store = new PgStore({ connect: async () => client });
  const failing = store.transaction(() => {
    throw new Error("no space");
  });
  await assert.rejects(failing, { message: "no space" });
  assert.equal(await store.transaction(() => 1), 1);
  assert.deepEqual(steps, ["BEGIN", "ROLLBACK", failure, "BEGIN", "COMMIT", undefined]);
});

test("PgStore", { skip: !url && "SPENDHOOK_POSTGRES is not set, such as postgresql:///test" }, async (t) => {
  const schema = `spendhook_test_${process.pid}`; // the database may have tables of others
  const pool = new pg.Pool({ connectionString: url, options: `-c search_path=${schema}` });
  await pool.query(`CREATE SCHEMA ${schema}`);
  t.after(async () => {
    await pool.query(`DROP SCHEMA ${schema} CASCADE`);
    await pool.end();
  });
  const open = (options?: StoreOptions) => new PgStore(pool, options);
  const verifier = new Verifier({ secrets: [secret], now: clock });
  const rows = async (query: string) => (await pool.query(query)).rows;
  const somebodyWaits = async () => {
    const waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while ((await rows(waiting)).length === 0);
  };

  await t.test("two processes create the tables at the same time", async () => {
    let second: Promise<void> | undefined;
    await open().transaction(async ({ work }) => {
      await work.query(tables);
      second = open().migrate();
      await somebodyWaits();
    });
    await second;
    await open().migrate();
    await pool.query("CREATE TABLE payments (id TEXT PRIMARY KEY)");
  });

  await t.test("ids and the cursor are kept, unless the transaction fails", () => checkTransactions(open()));
  await t.test("inboxes have names", () => checkNames(open));
  await t.test("old ids are forgotten", () => checkForgetting(open));

  await t.test("work and id are committed together", async () => {
    const fail = new Map([["rejected", 1], ["caught", 1]]); // how often, and how
    const inbox = new Inbox<pg.PoolClient>({
      verifier,
      store: open({ name: "work", now: clock }),
      work: async ({ id }, client) => {
        await client.query("INSERT INTO payments VALUES ($1)", [id]);
        const failing = fail.get(id)!;
        fail.set(id, 0);
        if (!failing) return;
        const failed = client.query("INSERT INTO payments VALUES ($1)", [id]);
        await (id === "caught" ? failed.catch(() => undefined) : failed);
      },
      failed: () => {},
    });
    for (const id of fail.keys()) {
      const request = signed(id, bodyOf(id), { "webhook-sequence": "17" });
      assert.equal((await inbox.handle(request)).status, 500);
      assert.deepEqual(await rows(`SELECT id FROM payments WHERE id = '${id}'`), []);
      for (let n = 0; n < 2; n++) assert.equal((await inbox.handle(request)).status, 204);
      assert.deepEqual(await rows(`SELECT id FROM payments WHERE id = '${id}'`), [{ id }]);
    }
    const noted = { sequence: "17", received_at: String(now) };
    assert.deepEqual(
      await rows("SELECT id, sequence, received_at FROM spendhook_inbox WHERE inbox = 'work' ORDER BY id"),
      [...fail.keys()].sort().map((id) => ({ id, ...noted })),
    );
    assert.equal(pool.idleCount, pool.totalCount);
  });

  await t.test("a second transaction with one id waits for the first", async () => {
    for (const undone of [true, false]) {
      const id = `wait-${undone}`;
      let second: Promise<boolean> | undefined;
      const first = open().transaction(async (tx) => {
        assert.equal(await tx.add(id, 1), true);
        second = open().transaction((other) => other.add(id, 1));
        await somebodyWaits();
        if (undone) throw new Error("undone");
      });
      await first.catch((error) => assert.equal(error.message, "undone"));
      assert.equal(await second, undone);
    }
  });

  await t.test("a connection that is lost during the work leaves the pool", async () => {
    const reported: string[] = [];
    let lost: pg.PoolClient | undefined;
    const inbox = new Inbox<pg.PoolClient>({
      verifier,
      store: open({ name: "lost" }),
      work: async (_, client) => {
        if (lost) return;
        lost = client;
        const { rows: [{ pid }] } = await client.query("SELECT pg_backend_pid() AS pid");
        const ended = new Promise<void>((resolve) => client.once("end", resolve));
        await pool.query("SELECT pg_terminate_backend($1)", [pid]);
        await ended;
      },
      failed: (error) => reported.push(error.message),
    });
    const removed = once(pool, "remove");
    const request = signed("pay-1", bodyOf("pay-1"));
    assert.equal((await inbox.handle(request)).status, 500);
    assert.equal((await removed)[0], lost);
    assert.match(reported.join(), /^event pay-1: .*not queryable/);
    assert.equal((await inbox.handle(request)).status, 204);
  });
});
