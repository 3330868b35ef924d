// Receives deliveries and verifies their HTTP message signatures (RFC 9421) with the library
// http-message-signatures. It needs the public keys of the sender, and no secret.

import { createHash, createPublicKey } from "node:crypto";
import { createVerifier, httpbis } from "http-message-signatures";
import { serve } from "./inbox.mjs";

const tolerance = 60; // seconds by which the clocks may differ
const requiredParams = ["created", "expires", "keyid", "alg", "tag"];
const requiredFields = ["@method", "@target-uri", "content-digest", "content-type", "webhook-id", "webhook-timestamp"];
const optionalFields = ["webhook-sequence", "webhook-previous"]; // required if they are there
const algorithms = { Ed25519: "ed25519", "P-256": "ecdsa-p256-sha256" }; // by curve
const { SPENDHOOK_JWKS: jwks, ORIGIN: origin } = process.env;
if (!jwks) throw new Error("SPENDHOOK_JWKS is not set");

await serve(accepted);

async function accepted(req, body) {
  const { headers, method } = req;
  if (!req.url.startsWith("/")) return false; // it could continue the host of the origin
  // Not from the Host header: a delivery to another receiver, sent on with its Host, would be valid.
  const url = (origin ?? `http://127.0.0.1:${req.socket.localPort}`) + req.url;
  let unreadable;
  const keyLookup = async ({ tag, created, keyid }) => {
    if (tag !== "webhook" || !(Math.abs(created / 1000 - Number(headers["webhook-timestamp"])) <= tolerance)) return null;
    return findKey(keyid).catch((error) => {
      unreadable = error;
      return null;
    });
  };
  const valid = await httpbis
    .verifyMessage(
      {
        keyLookup,
        tolerance,
        requiredParams,
        requiredFields: [...requiredFields, ...optionalFields.filter((name) => name in headers)],
        componentParser: refuseParameters,
      },
      { method, url, headers },
    )
    .catch(() => false);
  if (unreadable) throw unreadable;
  return valid === true && digestMatches(headers["content-digest"], body);
}

// refuseParameters keeps a signature from covering only a part of a header, or the header of another
// message. Otherwise it leaves the work to the library.
function refuseParameters(name, parameters) {
  if (parameters.size > 0) throw new Error(`${name} has parameters`);
  return null;
}

// digestMatches checks the sha-256 of Content-Digest (RFC 9530). The signature covers the header, not
// the body itself.
function digestMatches(header, body) {
  const [, digest] = /(?:^|,)[ \t]*sha-256=:([A-Za-z0-9+/]+=*):/.exec(header ?? "") ?? [];
  return digest === createHash("sha256").update(body).digest("base64");
}

const readAgain = 5 * 60_000; // ms after which the JWK Set is read again, to notice revoked keys: its max-age
const readAtMost = 5_000; // ms between two readings for unknown keys: anybody can send those
let keys = new Map();
let readAt = 0;
let reading = Promise.resolve();

// findKey returns the key with an id, or undefined. It throws if the key may be in a JWK Set that cannot be
// read now.
async function findKey(id) {
  const age = Date.now() - readAt;
  if (age > readAgain || (age > readAtMost && !keys.has(id))) {
    readAt = Date.now();
    reading = readKeys();
  }
  await reading; // a revoked key is not accepted because the set cannot be read
  return keys.get(id);
}

async function readKeys() {
  const answer = await fetch(jwks, { signal: AbortSignal.timeout(5_000), redirect: "error" });
  if (!answer.ok) throw new Error(`the JWK Set was answered with ${answer.status}`);
  const read = new Map();
  for (const key of (await answer.json()).keys) {
    const algorithm = algorithms[key.crv];
    if (!algorithm) continue;
    const verify = createVerifier(createPublicKey({ key, format: "jwk" }), algorithm);
    read.set(key.kid, { id: key.kid, algs: [algorithm], verify });
  }
  keys = read;
}
