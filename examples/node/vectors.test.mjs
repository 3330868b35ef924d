// Verifies the signature vectors of clients/conformance, and two of RFC 9421 itself, with the library
// http-message-signatures, which has no code in common with Spendhook.

import assert from "node:assert/strict";
import { createHash, createPublicKey } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { createVerifier, httpbis } from "http-message-signatures";

const file = new URL("../../clients/conformance/vectors.json", import.meta.url);
const { now, cases } = JSON.parse(readFileSync(file, "utf8"));
Date.now = () => now * 1000; // the clock of the library

const algorithms = { Ed25519: "ed25519", "P-256": "ecdsa-p256-sha256" }; // by curve
const requiredParams = ["created", "expires", "keyid", "alg", "tag"];
const requiredFields = ["@method", "@target-uri", "content-digest", "content-type", "webhook-id", "webhook-timestamp"];
const optionalFields = ["webhook-sequence", "webhook-previous"]; // required if they are there

// Cases that a Spendhook verifier refuses, and this library alone does not: neither the signature nor the digest is wrong.
const others = {
  "it checks no webhook-timestamp": ["timestamp 61 s before created", "timestamp that is not decimal"],
  "it leaves parameters of components to its caller": ["component with ;sf", "component with ;tr", "component with ;x=1"],
  "it does not restrict the covered components": ["component covered twice", "component @path beside"],
  "it does not check the types of parameters": ["tag that is a token", "created that is a string"],
  "it verifies the last of two signatures": ["two signatures with the tag"],
  "it verifies the method in upper case": ["method in lower case"],
  "it is given a whole URL": ["URL that continues the host of the origin"],
  "it does not know the use of a key": ["key for encryption"],
  "the fault is in the signature of Standard Webhooks": ["and v1 v1 with another secret", "and v1 v1 missing", "and v1 timestamp 301 s old"],
};
const reasons = new Map(Object.entries(others).flatMap(([reason, names]) => names.map((name) => [`rfc9421 ${name}`, reason])));
const messages = cases.filter((v) => v.origin); // without an origin, RFC 9421 is not demanded

test("there are vectors", () => {
  assert.ok(messages.length > 100);
  const refused = messages.filter((v) => !v.valid).map((v) => v.name);
  assert.deepEqual([...reasons.keys()].filter((name) => !refused.includes(name)), []);
});

for (const { name, valid, keys, origin, method, url, headers, body } of messages) {
  // A case that is not judged must be one that the library accepts, so that the list hides no refusal.
  test(reasons.has(name) ? `${name}: not judged, ${reasons.get(name)}` : name, async () => {
    const config = {
      requiredParams,
      requiredFields: [...requiredFields, ...optionalFields.filter((field) => field in headers)],
      keyLookup: async ({ tag, keyid }) => (tag === "webhook" && keyOf(keys.keys.find((key) => key.kid === keyid))) || null,
      tolerance: 60,
    };
    const message = { method, url: new URL(origin).href.replace(/\/$/, "") + url, headers };
    const signed = await httpbis.verifyMessage(config, message).catch(() => false);
    const accepted = signed === true && digestMatches(headers["content-digest"], Buffer.from(body, "base64"));
    assert.equal(accepted, valid || reasons.has(name));
  });
}

function keyOf(jwk) {
  const algorithm = algorithms[jwk?.crv];
  if (!algorithm) return null;
  return { id: jwk.kid, algs: [algorithm], verify: createVerifier(createPublicKey({ key: jwk, format: "jwk" }), algorithm) };
}

// digestMatches checks a Content-Digest (RFC 9530), which the library does not: each sha-256 and sha-512 of it must be
// the body's, and a sha-256 be there.
function digestMatches(header = "", body) {
  const members = header.split(",").map((member) => /^[ \t]*([\w-]+)=:([A-Za-z0-9+/]+=*):[ \t]*$/.exec(member));
  const right = ([, name, digest]) => digest === createHash(name.replace("-", "")).update(body).digest("base64");
  return members.some((m) => m?.[1] === "sha-256") && members.every((m) => m && (!/^sha-(256|512)$/.test(m[1]) || right(m)));
}

const rfcVectors = {
  "RFC 9421 appendix B.2.6": [
    { kid: "test-key-ed25519", kty: "OKP", crv: "Ed25519", x: "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs" },
    { method: "POST", url: "https://example.com/foo" },
    {
      date: "Tue, 20 Apr 2021 02:07:55 GMT",
      "content-type": "application/json",
      "content-length": "18",
      "signature-input": 'sig-b26=("date" "@method" "@path" "@authority" "content-type" "content-length");created=1618884473;keyid="test-key-ed25519"',
      signature: "sig-b26=:wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==:",
    },
  ],
  "RFC 9421 appendix B.2.4": [
    { kid: "test-key-ecc-p256", kty: "EC", crv: "P-256", x: "qIVYZVLCrPZHGHjP17CTW0_-D9Lfw0EkjqF7xB4FivA", y: "Mc4nN9LTDOBhfoUeg8Ye9WedFRhnZXZJA12Qp0zZ6F0" },
    { status: 200 },
    {
      "content-type": "application/json",
      "content-digest": "sha-512=:mEWXIS7MaLRuGgxOBdODa3xqM1XdEvxoYhvlCFJ41QJgJc4GTsPp29l5oGX69wWdXymyU0rjJuahq4l5aGgfLQ==:",
      "content-length": "23",
      "signature-input": 'sig-b24=("@status" "content-type" "content-digest" "content-length");created=1618884473;keyid="test-key-ecc-p256"',
      signature: "sig-b24=:wNmSUAhwb5LxtOtOpNa6W5xj067m5hFrj0XQ4fvpaCLx0NKocgPquLgyahnzDnDAUy5eCdlYUEkLIj+32oiasw==:",
    },
  ],
};

for (const [name, [jwk, message, headers]] of Object.entries(rfcVectors)) {
  test(name, async () => {
    const config = { keyLookup: async ({ keyid }) => (keyid === jwk.kid ? keyOf(jwk) : null) };
    assert.equal(await httpbis.verifyMessage(config, { ...message, headers }), true);
    assert.equal(await httpbis.verifyMessage(config, { ...message, headers: { ...headers, "content-length": "19" } }), false);
  });
}
