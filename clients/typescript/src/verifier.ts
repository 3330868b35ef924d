import { createHmac, timingSafeEqual } from "node:crypto";

import { decodeBase64 } from "./encoding.js";
import { InvalidMessage } from "./errors.js";
import type { TlsOptions } from "./http.js";
import { readMessageSignature, verifyMessageSignature } from "./httpsig.js";
import { KeySet, signedBy, type PublicKey } from "./keys.js";
import { Fields, type WebhookRequest } from "./request.js";

/** Which signatures a Verifier demands. Give secrets, keysUrl, or both: then each demanded signature must be valid. */
export interface VerifierOptions {
  /**
   * The signing secrets of the subscriber, whsec_ and base64: several while a secret is rotated. They demand a v1 signature
   * of Standard Webhooks by one of them.
   */
  secrets?: readonly string[];
  /**
   * …/.well-known/webhook-keys/{companyUuid} of the daemon. With origin it demands an HTTP message signature (RFC 9421),
   * without origin a v1a signature of Standard Webhooks, by one of the keys there. Use https, except on the same host.
   */
  keysUrl?: string | URL;
  /**
   * The start of the callback URL, up to what the request line has, such as https://hooks.example.com. It is not taken from
   * the Host header: a message to another receiver could be sent on with that.
   */
  origin?: string;
  /**
   * How far webhook-timestamp may be off, in seconds; 300 by default. It is for signatures of Standard Webhooks: HTTP
   * message signatures say themselves how long they are valid.
   */
  tolerance?: number;
  /** The clock, in milliseconds; Date.now by default. */
  now?: () => number;
  /** TLS settings for reading the keys. */
  tls?: TlsOptions;
}

const minSecret = 24; // bytes: with an empty secret anybody can sign
const maxSignatures = 16; // v1a signatures that are tried: each costs time, and anybody can send them

/** Verifies the signatures of deliveries. */
export class Verifier {
  readonly #secrets: readonly Buffer[];
  readonly #keys: KeySet | null;
  readonly #origin: string | null;
  readonly #tolerance: number;
  /** The clock, in milliseconds. */
  readonly now: () => number;

  /** Reads nothing yet: the keys are read with the first message that needs them. */
  constructor({ secrets = [], keysUrl, origin, tolerance = 300, now = Date.now, tls }: VerifierOptions) {
    if (secrets.length === 0 && !keysUrl) throw new TypeError("a verifier needs secrets or keysUrl");
    if (origin && !keysUrl) throw new TypeError("an origin needs keysUrl");
    if (origin && !/^https?:\/\/[!-"$-.0->@-~]+(\/[!-"$->@-~]*)?$/i.test(origin)) {
      throw new TypeError("origin is not the start of an http or https URL, in ASCII");
    }
    // With two slashes no message would be valid.
    if (origin?.endsWith("/")) throw new TypeError("origin ends with a slash, with which the path begins");
    if (!(tolerance >= 0)) throw new TypeError("tolerance is not a number of seconds");
    this.#secrets = secrets.map(decodeSecret);
    this.#keys = keysUrl ? new KeySet(new URL(keysUrl), now, tls) : null;
    this.#origin = origin || null;
    this.#tolerance = tolerance;
    this.now = now;
  }

  /**
   * Returns if each demanded signature of the request is valid. Throws InvalidMessage if one is not: answer 401; or
   * KeysUnavailable if the keys cannot be read: answer 503, so that the delivery is repeated.
   *
   * A valid message can be sent again: drop repeats by webhook-id, as an Inbox does.
   */
  async verify(request: WebhookRequest): Promise<void> {
    const fields = new Fields(request.headers);
    // A signature may not cover the blanks around it (RFC 9421 section 2.1), so with them a repeat would look like another event.
    if (!/^[!-~]+$/.test(fields.value("webhook-id"))) throw new InvalidMessage("webhook-id is missing or malformed");
    if (this.#secrets.length > 0) this.#verifySecret(fields, request.body);
    if (this.#keys && this.#origin !== null) await this.#verifyMessage(this.#keys, this.#origin, request, fields);
    else if (this.#keys) await this.#verifyPublic(this.#keys, fields, request.body);
  }

  #verifySecret(fields: Fields, body: Uint8Array): void {
    const message = this.#standardMessage(fields, body);
    const wanted = this.#secrets.map((secret) => createHmac("sha256", secret).update(message).digest());
    const given = signaturesOf(fields, "v1,");
    if (!given.some((signature) => wanted.some((mac) => mac.length === signature.length && timingSafeEqual(mac, signature)))) {
      throw new InvalidMessage("no v1 signature is valid");
    }
  }

  async #verifyPublic(keys: KeySet, fields: Fields, body: Uint8Array): Promise<void> {
    const message = this.#standardMessage(fields, body);
    const given = signaturesOf(fields, "v1a,").slice(0, maxSignatures);
    if (given.length > 0) {
      const valid = (known: readonly PublicKey[]) =>
        known.some((key) => key.algorithm === "ed25519" && given.some((signature) => signedBy(key, message, signature)));
      if (valid(await keys.known()) || valid(await keys.again())) return; // the keys may have been rotated
    }
    throw new InvalidMessage("no v1a signature is valid");
  }

  async #verifyMessage(keys: KeySet, origin: string, { method, url, body }: WebhookRequest, fields: Fields): Promise<void> {
    // Another URL than a path could continue the host of the origin.
    if (!url.startsWith("/")) throw new InvalidMessage("the URL of the request is not a path");
    const signature = readMessageSignature(method, origin + url, fields, body, this.now() / 1000);
    const valid = verifyMessageSignature(signature, await keys.known()) ?? verifyMessageSignature(signature, await keys.again());
    if (valid === null) throw new InvalidMessage("the key of the webhook signature is not known");
    if (!valid) throw new InvalidMessage("the webhook signature does not match the message");
  }

  /** Returns what is signed (Standard Webhooks 1.0.0, "Signature scheme"), after it has checked the timestamp. */
  #standardMessage(fields: Fields, body: Uint8Array): Buffer {
    const timestamp = fields.value("webhook-timestamp");
    if (!/^[0-9]{1,15}$/.test(timestamp)) throw new InvalidMessage("webhook-timestamp is not a number");
    if (Math.abs(Math.floor(this.now() / 1000) - Number(timestamp)) > this.#tolerance) {
      throw new InvalidMessage("webhook-timestamp is of another time");
    }
    return Buffer.concat([Buffer.from(`${fields.value("webhook-id")}.${timestamp}.`), body]);
  }
}

function decodeSecret(secret: string): Buffer {
  const key = decodeBase64(secret.replace(/^whsec_/, ""));
  if (!key || key.length < minSecret)
    throw new TypeError(`a signing secret is not whsec_ and base64 of at least ${minSecret} bytes`);
  return key;
}

/** Returns the signatures of a version. */
function signaturesOf(fields: Fields, version: string): Buffer[] {
  return fields
    .lines("webhook-signature")
    .flatMap((line) => line.split(/[ \t]+/))
    .filter((text) => text.startsWith(version))
    .map((text) => decodeBase64(text.slice(version.length)))
    .filter((signature) => signature !== null);
}
