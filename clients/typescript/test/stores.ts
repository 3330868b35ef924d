import assert from "node:assert/strict";

import { Inbox, Verifier, type Store, type StoreOptions } from "../dist/index.js";
import { bodyOf, clock, secret, signed } from "./messages.js";

/** Ids and the cursor are kept, unless the transaction fails. */
export async function checkTransactions(store: Store<unknown>): Promise<void> {
  assert.equal(await store.transaction((tx) => tx.cursor()), "");
  const failing = store.transaction(async (tx) => {
    assert.equal(await tx.add("a", 1), true);
    assert.equal(await tx.add("a", 1), false);
    await tx.setCursor("5-a");
    assert.equal(await tx.cursor(), "5-a");
    throw new Error("undone");
  });
  await assert.rejects(failing, /undone/);
  assert.equal(await store.transaction((tx) => tx.cursor()), "");
  assert.equal(await store.transaction(async (tx) => (await tx.setCursor("7-a"), tx.add("a", null))), true);
  assert.equal(await store.transaction(async (tx) => (await tx.setCursor("6-b"), tx.add("a", 1))), false);
  assert.equal(await store.transaction((tx) => tx.cursor()), "6-b");
  await store.transaction((tx) => tx.setCursor(""));
  assert.equal(await store.transaction((tx) => tx.cursor()), "");
}

type Open = (options: StoreOptions) => Store<unknown> & { forget(olderThan: number): Promise<number> };

/** Inboxes of two names in one database work on an event each, and have a cursor each; those of one name share them. */
export async function checkNames(open: Open): Promise<void> {
  const stores = ["names-a", "names-b", "names-a"].map((name) => open({ name }));
  const worked: number[] = [];
  for (const [n, store] of stores.entries()) {
    const work = () => worked.push(n);
    const inbox = new Inbox({ verifier: new Verifier({ secrets: [secret], now: clock }), store, work });
    assert.equal((await inbox.handle(signed("pay-1", bodyOf("pay-1")))).status, 204);
  }
  assert.deepEqual(worked, [0, 1]);
  const setCursor = (cursor: string, n: number) =>
    stores[n]!.transaction(async (tx) => {
      await new Promise(setImmediate);
      await tx.setCursor(cursor);
    });
  await Promise.all(["1-a", "2-b"].map(setCursor));
  const cursors = await Promise.all(stores.map((store) => store.transaction((tx) => tx.cursor())));
  assert.deepEqual(cursors, ["1-a", "2-b", "1-a"]);
}

/** Old ids are forgotten, but not those of another inbox. */
export async function checkForgetting(open: Open): Promise<void> {
  let time = clock();
  const now = () => time;
  const [store, other] = [open({ now }), open({ now, name: "forgetting" })];
  await store.transaction((tx) => tx.add("old", null));
  await other.transaction((tx) => tx.add("old", null));
  time += 1000 * 1000;
  await store.transaction((tx) => tx.add("new", null));
  assert.equal(await store.forget(1001), 0);
  assert.equal(await store.forget(999), 1);
  assert.equal(await store.transaction((tx) => tx.add("old", null)), true);
  assert.equal(await store.transaction((tx) => tx.add("new", null)), false);
  assert.equal(await other.transaction((tx) => tx.add("old", null)), false);
}
