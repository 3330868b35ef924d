import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { ApiError, ConnectionFailed, Feed, Inbox, MemoryStore, Verifier, type Passed } from "../dist/index.js";
import { followPause } from "../dist/inbox.js";
import { bodyOf, clock, secret, signed } from "./messages.js";
import { serve } from "./server.js";

interface Item {
  sequence: number;
  id: string;
  body?: string;
  gone?: string;
}

/** Serves a feed of events, and makes an inbox that reads it. A cursor is the number and the id of an event. */
async function made(t: TestContext, events: Item[]) {
  const state = {
    status: [] as number[],
    requests: [] as URLSearchParams[],
    changed: false,
    fail: "",
    worked: [] as string[],
    reported: [] as string[],
    forgotten: 0, // by each page
    passed: (_: Passed): unknown => undefined,
    answered: () => {},
  };
  const served = await serve((request, response) => {
    const url = new URL(request.url!, "http://localhost");
    assert.equal(url.pathname, "/base/api/v1/subscribers/s-1/feed");
    assert.equal(request.headers.authorization, "Bearer t");
    state.requests.push(url.searchParams);
    const cursor = url.searchParams.get("cursor");
    assert.equal(url.searchParams.get("after"), cursor === null ? "0" : null);
    const place = Number.parseInt(cursor ?? "0");
    const changed = state.changed || (!!place && !events.some((event) => cursorOf(event) === cursor));
    const status = state.status.shift() ?? (changed ? 409 : 200);
    const rest = events.filter(({ sequence }) => sequence > place);
    const content = rest.slice(0, 2);
    const last = content.at(-1);
    const reached = { next: last?.sequence ?? place, cursor: last ? cursorOf(last) : (cursor ?? "0-") };
    const page = { content, ...reached, more: rest.length > 2, last: 9, forgotten: state.forgotten };
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify(status === 200 ? page : { code: changed ? "FEED_CHANGED" : "UNAVAILABLE" }));
    state.answered();
  });
  t.after(served.close);
  const store = new MemoryStore();
  const inbox = new Inbox({
    verifier: new Verifier({ secrets: [secret], now: clock }),
    store,
    work: ({ id }) => {
      if (id === state.fail) throw new Error("no space");
      state.worked.push(id);
    },
    feed: new Feed({ url: `${served.url}/base/`, subscriber: "s-1", token: "t", company: "c-1" }),
    failed: (error) => state.reported.push(error.message),
    passed: (event) => state.passed(event),
  });
  return Object.assign(state, { inbox, cursor: () => store.transaction((tx) => tx.cursor()) });
}

const item = (n: number, id = `e-${n}`): Item => ({ sequence: n, id, body: bodyOf(id) });
const items = (...numbers: number[]) => numbers.map((n) => item(n));
const cursorOf = ({ sequence, id }: Item) => `${sequence}-${id}`;

test("events that the inbox lacks are worked on, in their order", async (t) => {
  const gone = { sequence: 3, id: "e-3", gone: "COMPACTED" };
  const { inbox, worked, requests, cursor } = await made(t, [item(1), item(2), gone, item(4), item(7)]);
  await inbox.handle(signed("e-2", bodyOf("e-2")));
  assert.deepEqual(await inbox.catchUp(), { missing: 3, gone: 1, forgotten: 0 });
  assert.deepEqual(worked, ["e-2", "e-1", "e-4", "e-7"]);
  assert.deepEqual(
    requests.map(String),
    ["after=0", "cursor=2-e-2", "cursor=4-e-4"].map((place) => `limit=100&companyUuid=c-1&${place}&wait=0s`),
  );
  assert.equal(await cursor(), "7-e-7");
  assert.deepEqual(await inbox.catchUp(), { missing: 0, gone: 0, forgotten: 0 });
});

test("events that have no body are named", async (t) => {
  const gone = ["COMPACTED", "CANCELLED", "QUARANTINED"].map((reason, n) => ({ sequence: n + 2, id: `e-${n + 2}`, gone: reason }));
  const state = await made(t, [item(1), ...gone, item(5)]);
  const passed: Passed[] = [];
  let failing = true;
  state.passed = async (event) => {
    passed.push(event);
    await new Promise(setImmediate);
    if (failing && event.id === "e-3") throw new Error("no space");
  };
  await assert.rejects(state.inbox.catchUp(), { message: "event e-3: no space" });
  assert.equal(await state.cursor(), "2-e-2");
  failing = false;
  assert.deepEqual(await state.inbox.catchUp(), { missing: 1, gone: 2, forgotten: 0 });
  assert.deepEqual(state.worked, ["e-1", "e-5"]);
  assert.deepEqual(passed, [
    { id: "e-2", sequence: 2, reason: "COMPACTED" },
    ...Array(2).fill({ id: "e-3", sequence: 3, reason: "CANCELLED" }),
    { id: "e-4", sequence: 4, reason: "QUARANTINED" },
  ]);
});

test("events that are no longer kept are reported, unless the reading began at the start", async (t) => {
  const events = items(1, 2, 3);
  const state = await made(t, events);
  state.forgotten = 5;
  assert.deepEqual(await state.inbox.catchUp(), { missing: 3, gone: 0, forgotten: 10 });
  assert.deepEqual(state.reported, []);
  events.push(...items(10, 11, 12));
  assert.deepEqual(await state.inbox.catchUp(), { missing: 3, gone: 0, forgotten: 10 });
  assert.deepEqual(state.reported, Array(2).fill("5 events since the last reading are no longer kept by the service"));
  state.forgotten = 0;
  await state.inbox.catchUp();
  assert.equal(state.reported.length, 2);
});

test("follow reports events that are no longer kept after its first reading", async (t) => {
  const state = await made(t, items(1, 2, 3));
  state.forgotten = 5;
  const stop = new AbortController();
  state.answered = () => state.requests.length === 4 && stop.abort();
  await state.inbox.follow({ signal: stop.signal });
  assert.deepEqual(state.reported, ["5 events since the last reading are no longer kept by the service"]);
});

test("after a rewind, the feed is read from the start", async (t) => {
  const events: Item[] = [item(1), { sequence: 2, id: "e-2", gone: "QUARANTINED" }, item(3)];
  const state = await made(t, events);
  await state.inbox.catchUp();
  events[1] = item(2);
  assert.equal((await state.inbox.catchUp()).missing, 0);
  await state.inbox.rewind();
  assert.equal(await state.cursor(), "");
  assert.equal((await state.inbox.catchUp()).missing, 1);
  assert.deepEqual(state.worked, ["e-1", "e-3", "e-2"]);
});

test("a page after the first that is read during a rewind does not undo it", async (t) => {
  const state = await made(t, [...items(1, 2), { sequence: 3, id: "e-3", gone: "CANCELLED" }]);
  state.passed = () => state.inbox.rewind();
  await state.inbox.catchUp();
  assert.equal(await state.cursor(), "");
});

test("an inbox without a feed does not read", async () => {
  const inbox = new Inbox({ verifier: new Verifier({ secrets: [secret] }), store: new MemoryStore(), work: () => {} });
  for (const read of [inbox.catchUp(), inbox.fillGaps(), inbox.follow()]) {
    await assert.rejects(read, (error) => error instanceof TypeError && error.message === "the inbox has no feed");
  }
});

test("an event whose work fails is not skipped", async (t) => {
  const state = await made(t, items(1, 2, 3, 4, 5));
  state.fail = "e-4";
  await assert.rejects(state.inbox.catchUp(), { message: "event e-4: no space" });
  assert.equal(await state.cursor(), "2-e-2");
  assert.deepEqual(state.worked, ["e-1", "e-2", "e-3"]);
  state.fail = "";
  assert.equal((await state.inbox.catchUp()).missing, 2);
  assert.deepEqual(state.worked, ["e-1", "e-2", "e-3", "e-4", "e-5"]);
});

test("after a failover that lost events, the feed is read from the start", async (t) => {
  const events = items(1, 2, 3);
  const state = await made(t, events);
  await state.inbox.catchUp();
  assert.equal(await state.cursor(), "3-e-3");
  events.splice(2, 1, item(3, "other"), item(4));
  assert.equal((await state.inbox.catchUp()).missing, 2);
  assert.deepEqual(state.worked, ["e-1", "e-2", "e-3", "other", "e-4"]);
  assert.equal(await state.cursor(), "4-e-4");
  assert.equal((await state.inbox.catchUp()).missing, 0);
  assert.deepEqual(
    state.requests.slice(2).map((query) => query.get("cursor")),
    ["3-e-3", null, "2-e-2", "4-e-4"],
  );
});

test("a failover that lost events is no failure of follow", async (t) => {
  const events = items(1);
  const state = await made(t, events);
  await state.inbox.catchUp();
  events[0] = item(1, "other");
  const stop = new AbortController();
  state.answered = () => state.requests.length === 4 && stop.abort();
  await state.inbox.follow({ signal: stop.signal });
  assert.deepEqual(state.worked, ["e-1", "other"]);
  assert.deepEqual(state.reported, []);
});

test("a feed that always says that it has changed", async (t) => {
  const state = await made(t, items(1));
  await state.inbox.catchUp();
  state.changed = true;
  await assert.rejects(state.inbox.catchUp(), (error) => error instanceof ApiError && error.code === "FEED_CHANGED");
  assert.equal(state.requests.length, 3);
  const stop = new AbortController();
  const following = state.inbox.follow({ signal: stop.signal });
  while (state.reported.length === 0) await new Promise(setImmediate);
  stop.abort(); // ends the pause
  await following;
  assert.deepEqual(state.reported, ["follow the feed: 409 FEED_CHANGED"]);
  assert.equal(state.requests.length, 4);
});

test("a feed that is not available", async (t) => {
  const state = await made(t, [item(1)]);
  state.status = [503];
  await assert.rejects(
    state.inbox.catchUp(),
    (error) => error instanceof ApiError && error.status === 503 && error.code === "UNAVAILABLE",
  );
  assert.equal((await state.inbox.catchUp()).missing, 1);
});

test("follow reads until the signal is aborted", async (t) => {
  const state = await made(t, items(1, 2, 3));
  const stop = new AbortController();
  state.answered = () => state.requests.length === 3 && stop.abort();
  await state.inbox.follow({ signal: stop.signal });
  assert.deepEqual(
    state.requests.map((query) => [query.get("cursor"), query.get("wait")]),
    [
      [null, "20s"],
      ["2-e-2", "20s"],
      ["3-e-3", "20s"],
    ],
  );
  assert.deepEqual(state.worked, ["e-1", "e-2", "e-3"]);
  assert.deepEqual(state.reported, []);
});

test("follow survives errors", async (t) => {
  const state = await made(t, [item(1)]);
  state.status = [503];
  const stop = new AbortController();
  const following = state.inbox.follow({ signal: stop.signal });
  while (state.reported.length === 0) await new Promise(setImmediate);
  stop.abort(); // ends the pause
  await following;
  assert.deepEqual(state.reported, ["follow the feed: 503 UNAVAILABLE"]);
});

test("the pauses of follow", () => {
  assert.deepEqual(
    [0, 1, 2, 5, 6, 1000].map((failures) => followPause(failures, new Error())),
    [1, 2, 4, 32, 60, 60],
  );
  assert.equal(followPause(0, new ApiError(429, "", "", 7)), 7);
  assert.equal(followPause(0, new ApiError(429, "", "", 3600)), 60);
});

test("an answer that does not lead on is refused", async (t) => {
  let answer = "";
  const served = await serve((_, response) => response.end(answer));
  t.after(served.close);
  const feed = new Feed({ url: served.url, subscriber: "s-1", token: "t" });
  for (answer of [
    "",
    "null",
    "{}",
    '{"content":[],"next":6,"more":false}',
    '{"content":[],"next":6,"cursor":6,"more":false}',
    '{"content":[],"next":6,"cursor":"","more":false}',
    '{"content":[],"next":5,"cursor":"5-a","more":true}',
    '{"content":[{"id":"a"}],"next":6,"cursor":"6-a","more":false}',
    '{"content":[null],"next":6,"cursor":"6-a","more":false}',
    '{"content":[],"next":"6","cursor":"6-a","more":false}',
  ]) {
    await assert.rejects(feed.read("5-a"), ApiError, answer);
  }
  answer = '{"content":[],"next":5,"cursor":"5-a","more":false}';
  assert.deepEqual(await feed.read("5-a"), { events: [], next: 5, cursor: "5-a", more: false, forgotten: 0 });
});

test("a signal ends a request that waits", async (t) => {
  const stop = new AbortController();
  const served = await serve(() => stop.abort(new Error("stopped")));
  t.after(served.close);
  const feed = new Feed({ url: served.url, subscriber: "s-1", token: "t" });
  await assert.rejects(feed.read("", 20, stop.signal), { message: "stopped" });
  await assert.rejects(feed.read("", 20, stop.signal), { message: "stopped" });
});

test("no connection", async () => {
  const served = await serve(() => {});
  await served.close();
  const feed = new Feed({ url: served.url, subscriber: "s-1", token: "t" });
  await assert.rejects(feed.read(""), (error) => error instanceof ConnectionFailed && error.temporary);
});
