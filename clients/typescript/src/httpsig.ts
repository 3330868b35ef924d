// HTTP message signatures (RFC 9421) with the tag "webhook", and Content-Digest (RFC 9530).

import { createHash } from "node:crypto";

import { InvalidMessage } from "./errors.js";
import { parseDictionary, serializeInnerList, type Dictionary, type InnerList, type Params } from "./fields.js";
import { signedBy, type PublicKey } from "./keys.js";
import type { Fields } from "./request.js";

const tag = "webhook";
const clockDifference = 60; // seconds by which the clocks may differ

/** What a signature must cover. */
const required = ["@method", "@target-uri", "content-digest", "content-type", "webhook-id", "webhook-timestamp"];
/** What it must cover if the request has it. */
const optional = ["webhook-sequence", "webhook-previous"];

/** What the signature of a request says, not verified. */
export interface MessageSignature {
  keyId: string;
  algorithm: string;
  signature: Buffer;
  /** What was signed (section 2.5). */
  base: Buffer;
}

/**
 * Reads the one signature with the tag, and checks all that needs no key: what it covers, its times, and the body against
 * Content-Digest. uri is the URL as the sender sees it, now is in unix seconds.
 */
export function readMessageSignature(
  method: string,
  uri: string,
  fields: Fields,
  body: Uint8Array,
  now: number,
): MessageSignature {
  const [label, input] = findInput(fields);
  const { created, expires, keyId, algorithm } = parametersOf(input.params);
  const signature = bytesOf(parse(fields, "signature"), label);
  checkTimes(created, expires, fields, now);
  const lines = componentsOf(input, method, uri, fields);
  lines.push(`"@signature-params": ${serializeInnerList(input)}`);
  checkDigest(fields, body);
  return { keyId, algorithm, signature, base: Buffer.from(lines.join("\n"), "latin1") };
}

/** Reports whether the signature is valid; null if no key has its id. */
export function verifyMessageSignature(s: MessageSignature, keys: readonly PublicKey[]): boolean | null {
  const key = s.keyId ? keys.find(({ id }) => id === s.keyId) : undefined;
  if (!key) return null;
  return key.algorithm === s.algorithm && signedBy(key, s.base, s.signature);
}

function refuse(reason: string): InvalidMessage {
  return new InvalidMessage(`the webhook signature is not acceptable: ${reason}`);
}

function parse(fields: Fields, name: string): Dictionary {
  try {
    return parseDictionary(fields.lines(name));
  } catch (error) {
    throw refuse(`${name}: ${(error as Error).message}`);
  }
}

function findInput(fields: Fields): [label: string, input: InnerList] {
  let found: [string, InnerList] | null = null;
  for (const [label, member] of parse(fields, "signature-input")) {
    if (!("items" in member) || stringOf(member.params, "tag") !== tag) continue;
    if (found) throw refuse(`more than one signature has the tag ${tag}`);
    found = [label, member];
  }
  if (!found) throw new InvalidMessage("the message has no webhook signature");
  return found;
}

function parametersOf(params: Params) {
  const created = integerOf(params, "created");
  const expires = integerOf(params, "expires");
  const keyId = stringOf(params, "keyid");
  const algorithm = stringOf(params, "alg");
  if (created === null || expires === null || keyId === null || algorithm === null) {
    throw refuse("created, expires, keyid and alg are required");
  }
  return { created, expires, keyId, algorithm };
}

function stringOf(params: Params, name: string): string | null {
  const bare = params.get(name);
  return bare?.kind === "string" ? bare.value : null;
}

function integerOf(params: Params, name: string): number | null {
  const bare = params.get(name);
  return bare?.kind === "integer" ? bare.value : null;
}

function bytesOf(dictionary: Dictionary, name: string): Buffer {
  const member = dictionary.get(name);
  if (!member || "items" in member || member.bare.kind !== "bytes") throw refuse(`${name} is not a byte sequence`);
  return member.bare.value;
}

/** Returns the lines of the signature base, without the last one. */
function componentsOf(input: InnerList, method: string, uri: string, fields: Fields): string[] {
  const covered = new Map<string, string>();
  for (const { bare, params } of input.items) {
    if (bare.kind !== "string") throw refuse("a component is not a string");
    const name = bare.value;
    if (params.size > 0) throw refuse(`${name} has parameters`); // they would cover a part of it, or another message
    if (covered.has(name)) throw refuse(`${name} is covered twice`);
    covered.set(name, componentOf(name, method, uri, fields));
  }
  const demanded = [...required, ...optional.filter((name) => fields.lines(name).length > 0)];
  const missing = demanded.find((name) => !covered.has(name));
  if (missing) throw refuse(`${missing} is not covered`);
  return [...covered].map(([name, value]) => `"${name}": ${value}`);
}

function componentOf(name: string, method: string, uri: string, fields: Fields): string {
  if (name === "@method") return fieldValue(name, [method]);
  if (name === "@target-uri") return targetUri(uri);
  if (!/^[a-z0-9!#$%&'*+.^_`|~-]+$/.test(name)) throw refuse("a component is not known");
  const lines = fields.lines(name);
  if (lines.length === 0) throw refuse(`${name} is missing`);
  return fieldValue(name, lines);
}

/** Combines the lines of a field (section 2.1). A line break in it could counterfeit the next component. */
function fieldValue(name: string, lines: readonly string[]): string {
  const value = lines.map(trimBlanks).join(", ");
  if (!/^[\t -~]*$/.test(value)) throw refuse(`${name} is not ASCII without control characters`);
  return value;
}

/** Removes blanks around a value. A regular expression would take quadratic time for many blanks. */
function trimBlanks(line: string): string {
  let [start, end] = [0, line.length];
  while (start < end && (line[start] === " " || line[start] === "\t")) start++;
  while (start < end && (line[end - 1] === " " || line[end - 1] === "\t")) end--;
  return line.slice(start, end);
}

/**
 * Returns the component @target-uri (section 2.2.2): scheme and host in lower case, no default port, then path and query
 * byte for byte. The class URL would change their percent-encoding.
 */
function targetUri(uri: string): string {
  const [, scheme, host, target] = /^(https?):\/\/([^/?#]+)([^#]*)/i.exec(uri) ?? [];
  if (!scheme || !host) throw refuse("the URL is not absolute");
  const defaultPort = scheme.toLowerCase() === "https" ? /:(443)?$/ : /:(80)?$/;
  const path = target!.startsWith("/") ? target : `/${target}`;
  const whole = `${scheme.toLowerCase()}://${host.toLowerCase().replace(defaultPort, "")}${path}`;
  if (!/^[!-~]*$/.test(whole)) throw refuse("the URL is not printable ASCII");
  return whole;
}

function checkTimes(created: number, expires: number, fields: Fields, now: number): void {
  if (created - now > clockDifference || now - expires > clockDifference) throw refuse("it is not valid at this time");
  const timestamp = fields.value("webhook-timestamp").trim();
  if (!/^[0-9]{1,15}$/.test(timestamp)) throw refuse("webhook-timestamp is not a number");
  if (Math.abs(Number(timestamp) - created) > clockDifference) throw refuse("webhook-timestamp is not created");
}

/** Checks the sha-256 of the body, and the sha-512 if there is one. Other algorithms are ignored. */
function checkDigest(fields: Fields, body: Uint8Array): void {
  const digests = parse(fields, "content-digest");
  for (const [name, algorithm] of [
    ["sha-256", "sha256"],
    ["sha-512", "sha512"],
  ] as const) {
    if (name === "sha-512" && !digests.has(name)) continue;
    if (!createHash(algorithm).update(body).digest().equals(bytesOf(digests, name))) {
      throw new InvalidMessage("the body does not match Content-Digest");
    }
  }
}
