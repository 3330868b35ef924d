// Stores each event that Spendhook delivers once.

import { link, mkdir, open, readFile, rm, writeFile } from "node:fs/promises";
import { createServer, request as http } from "node:http";
import { request as https } from "node:https";
import { readFileSync } from "node:fs";
import { randomUUID } from "node:crypto";
import { join } from "node:path";

const maxBody = 1 << 20; // larger than the body of any delivery
const env = process.env;
const inbox = env.INBOX ?? "inbox";
const secrets = (env.SPENDHOOK_SECRET ?? "").split(" ").filter(Boolean); // two while a secret rotates

/**
 * Receives deliveries until the process ends. Its settings are environment variables, which
 * examples/README.md explains.
 * @param {(secret: string, headers: object, body: Buffer) => boolean} verified whether the
 *   body was signed with the secret, at most 5 minutes ago
 */
export async function receive(verified) {
  if (secrets.length === 0) throw new Error("SPENDHOOK_SECRET is not set");
  for (const secret of secrets) { // with an empty secret anybody can sign
    if (Buffer.from(secret.replace(/^whsec_/, ""), "base64").length < 24)
      throw new Error("SPENDHOOK_SECRET is not whsec_ and base64 of at least 24 bytes");
  }
  await serve((req, body) => secrets.some((secret) => verified(secret, req.headers, body)));
}

/**
 * Receives deliveries like receive, but does not use SPENDHOOK_SECRET.
 * @param {(req: IncomingMessage, body: Buffer) => boolean | Promise<boolean>} accepted whether
 *   the request was signed. If accepted throws, Spendhook retries.
 */
export async function serve(accepted) {
  await mkdir(inbox, { recursive: true, mode: 0o700 });
  const server = createServer(async (req, res) => {
    if (req.method === "OPTIONS") return handshake(req, res);
    const [status, text] = await answer(req, accepted);
    res.writeHead(status).end(text);
  });
  server.listen(Number(env.PORT ?? 3000), "127.0.0.1", () => {
    console.log(`listening on http://127.0.0.1:${server.address().port}`);
    if (env.SPENDHOOK_URL) catchUp().catch((error) => console.error("catching up:", error.message));
  });
}

// answer stores the event of a delivery and returns the status code and the text of the answer. Process the event
// afterwards, from the inbox: Spendhook waits 15 s for an answer.
async function answer(req, accepted) {
  const chunks = [];
  let size = 0;
  try {
    for await (const chunk of req) {
      size += chunk.length;
      if (size > maxBody) return [400];
      chunks.push(chunk);
    }
  } catch {
    return [400];
  }
  const body = Buffer.concat(chunks);
  try {
    if (!(await accepted(req, body))) return [401];
    const text = challenge(body);
    if (text) return [200, text];
    await store(req.headers["webhook-id"], body);
  } catch (error) {
    console.error(error.message);
    return [500]; // Spendhook retries
  }
  return [204];
}

// handshake answers the daemon that asks, in the format cloudevents, whether it may deliver. It is not signed, so nobody else
// gets consent.
function handshake(req, res) {
  const origin = env.SPENDHOOK_ORIGIN;
  const agreed = origin && req.headers["webhook-request-origin"]?.toLowerCase() === origin.toLowerCase();
  const consent = { "WebHook-Allowed-Origin": origin, "WebHook-Allowed-Rate": "*" };
  res.writeHead(agreed ? 200 : 405, { Allow: "POST", ...(agreed && consent) }).end();
}

// challenge returns the text that the answer to a challenge repeats; undefined for any other message. Answer no
// challenge whose signature is not valid.
function challenge(body) {
  const message = JSON.parse(body);
  return message.event === "SUBSCRIBER_CHALLENGE" ? message.metadata.challenge : undefined;
}

// store writes the file of an event unless the file exists: an event may be delivered more than
// once, always with the same id. The file is complete or does not exist.
async function store(id, body) {
  if (!/^[A-Za-z0-9_-]{1,128}$/.test(id)) throw new Error(`invalid event id ${id}`);
  const temporary = join(inbox, `.new-${randomUUID()}`);
  try {
    await writeFile(temporary, body, { mode: 0o600, flush: true });
    await link(temporary, join(inbox, `${id}.json`));
  } catch (error) {
    if (error.code === "EEXIST") return;
    throw error;
  } finally {
    await rm(temporary, { force: true });
  }
  const folder = await open(inbox);
  await folder.sync(); // so that the name of the file survives a power failure too
  await folder.close();
  console.log(`received ${id}`);
}

// catchUp reads the missed events from the feed, after the last event that catchUp has read.
async function catchUp() {
  const path = join(inbox, ".after");
  let after = Number(await readFile(path, "utf8").catch(() => "0"));
  for (let more = true; more; ) {
    const page = await readFeed(after);
    for (const event of page.content) {
      if (event.body !== undefined) await store(event.id, Buffer.from(event.body)); // else it is gone
    }
    ({ next: after, more } = page);
    await writeFile(path, String(after));
  }
  console.log(`caught up to ${after}`);
}

const file = (name) => (name ? readFileSync(name) : undefined);

function readFeed(after) {
  const url = new URL(`/api/v1/subscribers/${env.SPENDHOOK_SUBSCRIBER}/feed?after=${after}`, env.SPENDHOOK_URL);
  const options = {
    headers: { Authorization: `Bearer ${env.SPENDHOOK_TOKEN}` },
    timeout: 30_000,
    ca: file(env.SPENDHOOK_CACERT),
    cert: file(env.SPENDHOOK_CLIENT_CERT),
    key: file(env.SPENDHOOK_CLIENT_KEY),
  };
  return new Promise((resolve, reject) => {
    const req = (url.protocol === "https:" ? https : http)(url, options, async (res) => {
      try {
        if (res.statusCode !== 200) throw new Error(`the feed was answered with ${res.statusCode}`);
        resolve(JSON.parse(Buffer.concat(await res.toArray())));
      } catch (error) {
        reject(error);
      }
    });
    req.on("timeout", () => req.destroy(new Error("the feed was not answered")));
    req.on("error", reject).end();
  });
}
