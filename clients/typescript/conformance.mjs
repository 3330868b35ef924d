// A receiver and an emitter for the suite in clients/conformance, which tests the libraries of all languages and explains the
// environment variables and the paths. Build the library first: npm run build.

import { createServer } from "node:http";
import { DatabaseSync } from "node:sqlite";
import { json } from "node:stream/consumers";

import { EmitFailed, Emitter, Feed, Inbox, SqlStore, Verifier, nodeHandler } from "./dist/index.js";

const { env } = process;
const db = new DatabaseSync(env.DATABASE || ":memory:", { timeout: 1000 });
db.exec("PRAGMA journal_mode = WAL");
const store = new SqlStore(db);
await store.migrate();
await store.transaction(() => db.exec("CREATE TABLE IF NOT EXISTS worked (id TEXT NOT NULL, sequence BIGINT)"));

const access = {
  url: env.SPENDHOOK_URL,
  ...(env.SPENDHOOK_CLIENT_ID
    ? { credentials: { id: env.SPENDHOOK_CLIENT_ID, secret: env.SPENDHOOK_CLIENT_SECRET } }
    : { token: env.SPENDHOOK_TOKEN }),
};
const emitter = env.SPENDHOOK_URL ? new Emitter(access) : undefined;
const inbox = new Inbox({
  verifier: new Verifier({
    secrets: (env.SPENDHOOK_SECRET ?? "").split(" ").filter(Boolean),
    keysUrl: env.SPENDHOOK_JWKS,
    origin: env.ORIGIN,
  }),
  store,
  work,
  feed: env.SPENDHOOK_URL ? new Feed({ ...access, subscriber: env.SPENDHOOK_SUBSCRIBER }) : undefined,
  origin: env.SPENDHOOK_ORIGIN,
  failed: (error) => console.error(error.message),
});

const failures = new Map(); // how often the work failed on purpose, by event

// work notes the event. It fails twice if the metadata of the event say so.
function work(event, db) {
  if (event.metadata?.fail === true) {
    const count = (failures.get(event.id) ?? 0) + 1;
    failures.set(event.id, count);
    if (count <= 2) throw new Error("it fails as it was told to");
  }
  db.prepare("INSERT INTO worked (id, sequence) VALUES (?, ?)").run(event.id, event.sequence);
}

// The ids are read by a transaction too, so that no work is under way.
const worked = () =>
  store.transaction(() =>
    db
      .prepare("SELECT id FROM worked ORDER BY rowid")
      .all()
      .map(({ id }) => id),
  );

async function emit(request) {
  const events = await json(request);
  try {
    return [200, await emitter.sendAll(events)];
  } catch (error) {
    if (error instanceof EmitFailed) return [500, { error: error.message, results: error.results }];
    throw error;
  }
}

const routes = {
  "GET /inbox": async () => [200, await worked()],
  "POST /catchup": async () => [200, { missing: (await inbox.catchUp()).missing }],
  "POST /emit": emit,
};

const hooks = nodeHandler(inbox);
if (env.FILL_GAPS === "1") void inbox.fillGaps();

const server = createServer(async (request, response) => {
  const { pathname } = new URL(request.url, "http://localhost");
  if (pathname === "/hooks" || pathname.startsWith("/hooks/")) return hooks(request, response);
  const route = routes[`${request.method} ${pathname}`] ?? (async () => [404, { error: "not found" }]);
  const [status, value] = await route(request).catch((error) => [500, { error: error.message }]);
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
});
server.listen(Number(env.PORT || 0), "127.0.0.1", () => console.log(`listening on http://127.0.0.1:${server.address().port}`));
