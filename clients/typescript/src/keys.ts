// The keys that the daemon publishes.

import { createPublicKey, verify, type KeyObject } from "node:crypto";

import { asObject, asString, parseJson } from "./encoding.js";
import { KeysUnavailable } from "./errors.js";
import { call, type TlsOptions } from "./http.js";

/** A public key. */
export interface PublicKey {
  id: string;
  algorithm: "ed25519" | "ecdsa-p256-sha256";
  key: KeyObject;
}

const signatureSize = 64; // bytes, of both algorithms

/** Reports whether a message was signed with the private key of a key. */
export function signedBy({ algorithm, key }: PublicKey, message: Buffer, signature: Buffer): boolean {
  if (signature.length !== signatureSize) return false;
  if (algorithm === "ed25519") return verify(null, message, key, signature);
  return verify("sha256", message, { key, dsaEncoding: "ieee-p1363" }, signature); // r and s, not DER (RFC 9421 section 3.3.4)
}

/** Reads a member of a JWK Set; null if it is no key that Spendhook signs with, or not one for signatures. */
export function readJwk(value: unknown): PublicKey | null {
  const jwk = asObject(value);
  if (!jwk || !absentOr(jwk["use"], "sig") || !isCoordinate(jwk["x"])) return null;
  const { kty, crv, alg, x, y } = jwk;
  const id = asString(jwk["kid"]) ?? "";
  if (kty === "OKP" && crv === "Ed25519" && absentOr(alg, "EdDSA", "Ed25519")) return imported(id, "ed25519", { kty, crv, x });
  if (kty === "EC" && crv === "P-256" && absentOr(alg, "ES256") && isCoordinate(y)) {
    return imported(id, "ecdsa-p256-sha256", { kty, crv, x, y });
  }
  return null;
}

function imported(id: string, algorithm: PublicKey["algorithm"], key: { [name: string]: string | undefined }): PublicKey | null {
  try {
    return { id, algorithm, key: createPublicKey({ key, format: "jwk" }) };
  } catch {
    return null; // not a point of the curve
  }
}

function absentOr(value: unknown, ...allowed: string[]): boolean {
  return value === undefined || value === "" || allowed.includes(value as string);
}

/** Reports whether a value is base64url of 32 bytes, without padding. */
function isCoordinate(value: unknown): value is string {
  return typeof value === "string" && value.length === 43 && Buffer.from(value, "base64url").toString("base64url") === value;
}

const minute = 60_000;
const minLife = 5 * minute; // within these bounds Cache-Control says how long the keys are used
const maxLife = 24 * 60 * minute;
const pause = 5_000; // ms between two readings, after an unknown key or a failure: anybody can send unknown keys
const timeout = 5_000;
const maxSize = 64 << 10;

/** Keeps the keys of one address. One caller reads them, the others wait. */
export class KeySet {
  #keys: readonly PublicKey[] | null = null;
  #life = 0;
  #readAt = 0;
  #triedAt = 0;
  #failure: KeysUnavailable | null = null;
  #reading: Promise<void> | null = null;

  constructor(
    readonly url: URL,
    readonly now: () => number,
    readonly tls?: TlsOptions,
  ) {}

  /** Returns the keys. It reads them if they are too old. */
  known(): Promise<readonly PublicKey[]> {
    return this.#get(() => this.#life);
  }

  /**
   * Returns the keys after a signature by an unknown one. It reads them unless they were read within the last five seconds.
   */
  again(): Promise<readonly PublicKey[]> {
    return this.#get(() => pause);
  }

  async #get(life: () => number): Promise<readonly PublicKey[]> {
    for (;;) {
      const now = this.now();
      if (this.#keys && isYounger(now - this.#readAt, life())) return this.#keys;
      if (this.#failure && isYounger(now - this.#triedAt, pause)) throw this.#failure;
      this.#reading ??= this.#read(now).finally(() => (this.#reading = null));
      await this.#reading;
      // What was read now is fresh enough, even if the clock has moved.
      if (this.#failure) throw this.#failure;
      if (this.#keys && this.#readAt >= now) return this.#keys;
    }
  }

  async #read(now: number): Promise<void> {
    this.#triedAt = now;
    try {
      const answer = await call({ method: "GET", url: this.url, tls: this.tls, timeout, maxSize });
      if (answer.status !== 200) throw new Error(`the answer has the status ${answer.status}`);
      const keys = asObject(parseJson(answer.body))?.["keys"] ?? [];
      if (!asObject(parseJson(answer.body)) || !Array.isArray(keys)) throw new Error("the answer is no JWK Set");
      this.#keys = keys.map(readJwk).filter((key) => key !== null);
      this.#life = lifeOf(answer.headers["cache-control"]);
      [this.#readAt, this.#failure] = [now, null];
    } catch (error) {
      this.#failure = new KeysUnavailable(`read the published keys: ${(error as Error).message}`, { cause: error });
    }
  }
}

/** Reports whether an age is less than another. A negative one is not: the clock has jumped back, so nobody knows it. */
function isYounger(age: number, than: number): boolean {
  return 0 <= age && age < than;
}

/** Returns how long keys may be used, in ms. */
export function lifeOf(cacheControl = ""): number {
  for (const directive of cacheControl.toLowerCase().split(",")) {
    const seconds = /^max-age=([0-9]{1,9})$/.exec(directive.trim())?.[1];
    if (seconds) return Math.min(Math.max(Number(seconds) * 1000, minLife), maxLife);
  }
  return minLife;
}
