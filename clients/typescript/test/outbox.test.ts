import assert from "node:assert/strict";
import { test } from "node:test";

import { insertOutbox, type OutboxEvent } from "../dist/index.js";

/** A client that records what it is to do. */
function recording() {
  const calls: [string, unknown[]][] = [];
  return { calls, query: async (text: string, values: unknown[]) => void calls.push([text, values]) };
}

test("an event is inserted by one statement, with its values", async () => {
  const client = recording();
  await insertOutbox(client, {
    id: "pay-1",
    event: "PAYMENT_PAID",
    companyUuid: "ABCDEF00-0000-4000-8000-000000000001",
    key: "account-1",
    timestamp: new Date(1795167000_123),
    metadata: '{"amount": 12.50}',
    errorCode: "C",
    errorMessage: "m",
  });
  await insertOutbox(client, { id: "pay-2", event: "PAYMENT_PAID" });
  assert.match(client.calls[0]![0], /^WITH written AS \(INSERT INTO spendhook_outbox .*\$8\) RETURNING 1\) SELECT pg_notify/);
  assert.deepEqual(
    client.calls.map(([, values]) => values),
    [
      ["pay-1", "ABCDEF00-0000-4000-8000-000000000001", "PAYMENT_PAID", "account-1", "2026-11-20T09:30:00.123Z", '{"amount": 12.50}', "C", "m"],
      ["pay-2", null, "PAYMENT_PAID", null, null, "{}", null, null],
    ],
  );
});

test("timestamps and metadata have several forms", async () => {
  const client = recording();
  for (const timestamp of [1795167000_123, "2026-11-20T11:30:00+02:00"]) {
    await insertOutbox(client, { id: "a", event: "PAID", timestamp, metadata: { amount: "12.50" } });
  }
  assert.deepEqual(
    client.calls.map(([, values]) => [values[4], values[5]]),
    [
      ["2026-11-20T09:30:00.123Z", '{"amount":"12.50"}'],
      ["2026-11-20T11:30:00+02:00", '{"amount":"12.50"}'],
    ],
  );
});

test("an event that is not valid is not inserted", async () => {
  const client = recording();
  const wrong: Record<string, object> = {
    "the id": { id: "" },
    "begin with spendhook-": { id: "spendhook-1" },
    "1 to 128": { id: "a".repeat(129) },
    "its type": { event: "A B" },
    "not a UUID": { companyUuid: "acme" },
    "key has more": { key: "é".repeat(513) },
    "not a JSON object": { metadata: "[1]" },
    "are not a JSON": { metadata: "{" },
    "more than 256 KiB": { metadata: { a: "b".repeat(256 << 10) } },
    "errorCode has more": { errorCode: "c".repeat(129) },
    "errorMessage has more": { errorMessage: "m".repeat(4097) },
    "timestamp is not": { timestamp: "2026-11-20T09:30:00" },
    "the timestamp": { timestamp: new Date(NaN) },
  };
  for (const [text, change] of Object.entries(wrong)) {
    const event = { id: "a", event: "PAID", ...change } as OutboxEvent;
    await assert.rejects(insertOutbox(client, event), (error) => error instanceof TypeError && error.message.includes(text), text);
  }
  assert.equal(client.calls.length, 0);
});
