import { setTimeout as timer } from "node:timers/promises";

import { Access, TokenRefused, fieldProblems, isTemporary, notTheApi, type AccessOptions } from "./access.js";
import { asObject, asString, parseJson } from "./encoding.js";
import { ApiError, type FieldProblem } from "./errors.js";

type Sleep = (milliseconds: number, signal?: AbortSignal) => Promise<unknown>;

/** How an Emitter connects. The token needs the scope events:write. */
export interface EmitterOptions extends AccessOptions {
  /** The uuid of the company of events without companyUuid, if the token belongs to no company. */
  company?: string;
  /** How long the requests for one array are repeated, in seconds; 60 by default. */
  retryFor?: number;
  /** Waits for so many milliseconds, and is rejected if the signal is aborted; for tests. */
  sleep?: Sleep;
}

/** An event to be emitted. */
export interface NewEvent {
  /**
   * Unique in the company, 1 to 128 of A-Z a-z 0-9 _ -. It is that of the event, not of the call: a repeat has the same
   * one.
   */
  id: string;
  /** Its type, such as PAYMENT_PAID. */
  event: string;
  /** When the event happened: a Date, RFC 3339, or epoch milliseconds. A repeat has the same one. */
  timestamp: Date | string | number;
  /** A JSON object. Write decimals as strings: numbers of JavaScript are rounded. */
  metadata?: Readonly<Record<string, unknown>> | null;
  errorCode?: string | null;
  errorMessage?: string | null;
  /** The uuid of the company, if the token belongs to none. */
  companyUuid?: string | null;
}

/** Why an event was not accepted. */
export interface ItemError {
  /** A stable code, which docs/errors.md of Spendhook explains; PAYLOAD_TOO_LARGE if a proxy refused the event for its size. */
  code: string;
  /** A text for people. */
  message: string;
  /** The seconds after which the same event may be accepted; absent if it would be refused again. */
  retryAfter?: number;
  /** The fields that are not valid. */
  errors?: FieldProblem[];
}

/** What became of an event. DUPLICATE: it is known already. CONFLICT: its id is that of another event. */
export interface Result {
  id: string;
  status: "ACCEPTED" | "DUPLICATE" | "CONFLICT" | "REJECTED";
  /** Why it is a CONFLICT or REJECTED. */
  error?: ItemError;
}

/** Not all events got a result. Send the same events again: those that were accepted will be DUPLICATE. */
export class EmitFailed extends Error {
  override name = "EmitFailed";

  constructor(
    message: string,
    /** The results so far, in the order of the events; null: it is not known whether the event was accepted. */
    readonly results: readonly (Result | null)[],
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** The daemon refuses an event for good: the result is a CONFLICT or REJECTED. */
export class EventRefused extends Error {
  override name = "EventRefused";

  constructor(readonly result: Result) {
    super(`event ${result.id}: ${[result.status, result.error?.code, result.error?.message].filter(Boolean).join(": ")}`);
  }
}

// The limits of one request. The API takes up to 8 MiB; a proxy may take less.
const maxArray = 1000; // events
const maxArrayBytes = 4 << 20;

const attemptTimeout = 10_000;
const firstPause = 500;
const longestPause = 30_000;
const maxAnswer = 16 << 20;

/** What is known of the events while they are sent, by their index. */
interface Job {
  texts: readonly string[];
  ids: readonly string[];
  results: (Result | null)[];
  deadline: number;
  signal: AbortSignal | undefined;
}

/**
 * Emits events, each at least once and so that it is accepted once: what is repeated has the same bytes, and the daemon
 * knows an event by its id.
 */
export class Emitter {
  readonly #access: Access;
  readonly #url: URL;
  readonly #retryFor: number;
  readonly #now: () => number;
  readonly #sleep: Sleep;

  /** Connects with the first event. */
  constructor({ company, retryFor = 60, sleep = defaultSleep, ...access }: EmitterOptions) {
    if (!(retryFor >= 0)) throw new TypeError("retryFor is not a number of seconds");
    this.#access = new Access(access);
    this.#url = this.#access.address("/api/v1/events");
    if (company) this.#url.search = new URLSearchParams({ companyUuid: company }).toString();
    this.#retryFor = retryFor * 1000;
    this.#now = access.now ?? Date.now;
    this.#sleep = sleep;
  }

  /**
   * Sends one event. Its result is ACCEPTED or DUPLICATE; otherwise EventRefused is thrown. After an EmitFailed it is not
   * known whether the event was accepted.
   */
  async send(event: NewEvent, options: { signal?: AbortSignal } = {}): Promise<Result> {
    const result = (await this.sendAll([event], options))[0]!;
    if (result.status === "CONFLICT" || result.status === "REJECTED") throw new EventRefused(result);
    return result;
  }

  /**
   * Sends events in arrays, and returns the result of each, in their order. Events that are refused for a reason that
   * passes are sent again, alone. A refused event is no error: look at each status. An array that is too large for a proxy is
   * divided. An event that is too large even alone, or that cannot be read (MALFORMED_BODY), is REJECTED, and the others go
   * on. It throws TypeError before anything is sent if an event lacks its id or its timestamp, and EmitFailed when it gives
   * up, also because the signal is aborted.
   */
  async sendAll(events: readonly NewEvent[], { signal }: { signal?: AbortSignal } = {}): Promise<Result[]> {
    const texts = events.map(serialize);
    const ids = events.map(({ id }) => id);
    const results: (Result | null)[] = events.map(() => null);
    try {
      for (let first = 0; first < texts.length;) {
        const end = endOfArray(texts, first);
        await this.#sendArray({ texts, ids, results, signal, deadline: this.#now() + this.#retryFor }, range(first, end));
        first = end;
      }
    } catch (error) {
      throw new EmitFailed(`emit events: ${(error as Error).message}`, results, { cause: error });
    }
    return results as Result[];
  }

  /** Sends what fits into one request, until no event is refused for a reason that passes. */
  async #sendArray(job: Job, pending: number[]): Promise<void> {
    const { results, deadline, signal } = job;
    for (;;) {
      await this.#sendOnce(job, pending);
      pending = pending.filter((index) => results[index]!.error?.retryAfter !== undefined);
      if (pending.length === 0) return;
      const asked = Math.max(...pending.map((index) => results[index]!.error!.retryAfter!), 1);
      if (!(await this.#pause(asked * 1000, deadline, signal))) {
        throw new Error(`${pending.length} events are still refused: ${results[pending[0]!]!.error!.message}`);
      }
      for (const index of pending) results[index] = null; // until the next answer it is not known
    }
  }

  /** Sends an array, which it halves while one of its events may be to blame for a refusal, and keeps the results. */
  async #sendOnce(job: Job, pending: readonly number[]): Promise<void> {
    const { texts, ids, results, deadline, signal } = job;
    const items = await this.#post(`[${pending.map((index) => texts[index]).join(",")}]`, pending.length, deadline, signal);
    if (items) {
      for (const [n, index] of pending.entries()) results[index] = readResult(items[n]!, ids[index]!);
      return;
    }
    const half = pending.length >> 1;
    await this.#sendOnce(job, pending.slice(0, half));
    await this.#sendOnce(job, pending.slice(half));
  }

  /**
   * Sends a body, the same bytes until it is answered with a result for each event. Returns null if an array of several
   * events is refused because of them.
   */
  async #post(body: string, count: number, deadline: number, signal?: AbortSignal): Promise<Record<string, unknown>[] | null> {
    const bytes = Buffer.from(body);
    for (let attempt = 0; ; attempt++) {
      try {
        const headers = { "content-type": "application/json" };
        const call = {
          method: "POST",
          url: this.#url,
          headers,
          body: bytes,
          timeout: attemptTimeout,
          maxSize: maxAnswer,
          signal,
        } as const;
        const answer = await this.#access.send(call);
        const results = asObject(parseJson(answer.body))?.["results"];
        if (!Array.isArray(results) || results.length !== count || !results.every(isResult)) throw notTheApi(answer);
        return results;
      } catch (error) {
        if (blamesEvents(error)) return count === 1 ? [refusal(error)] : null;
        const asked = error instanceof ApiError ? error.retryAfter : null;
        const pause = asked ? asked * 1000 : backoff(attempt, Math.random());
        if (!isTemporary(error) || !(await this.#pause(pause, deadline, signal))) throw error;
      }
    }
  }

  /** Waits, or returns false if the time is over before. */
  async #pause(milliseconds: number, deadline: number, signal?: AbortSignal): Promise<boolean> {
    if (this.#now() + milliseconds > deadline) return false;
    await this.#sleep(milliseconds, signal);
    return true;
  }
}

const defaultSleep: Sleep = (milliseconds, signal) => timer(milliseconds, undefined, signal && { signal });

/** Returns the pause after a failed attempt: it doubles, and is between a half and all of that. random is from 0 to 1. */
export function backoff(attempt: number, random: number): number {
  return Math.min(firstPause * 2 ** Math.min(attempt, 10), longestPause) * (0.5 + random / 2);
}

function serialize(event: NewEvent): string {
  if (!event.id || typeof event.id !== "string") throw new TypeError("an event needs an id");
  if (event.timestamp === undefined || event.timestamp === null || event.timestamp === "") {
    throw new TypeError(`event ${event.id} needs a timestamp`);
  }
  if (event.timestamp instanceof Date && Number.isNaN(event.timestamp.getTime())) {
    throw new TypeError(`event ${event.id} has no valid timestamp`);
  }
  const { id, event: type, timestamp, metadata, errorCode, errorMessage, companyUuid } = event; // the API refuses other fields
  return JSON.stringify({ id, companyUuid, event: type, timestamp, metadata, errorCode, errorMessage });
}

/**
 * Returns how far the array goes that begins with first. An event that is too large by itself is sent alone.
 */
export function endOfArray(texts: readonly string[], first: number): number {
  let size = "[]".length;
  for (let i = first; i < texts.length; i++) {
    size += Buffer.byteLength(texts[i]!) + ",".length;
    if (i > first && (size > maxArrayBytes || i - first === maxArray)) return i;
  }
  return texts.length;
}

function range(first: number, end: number): number[] {
  return Array.from({ length: end - first }, (_, n) => first + n);
}

const statuses: readonly unknown[] = ["ACCEPTED", "DUPLICATE", "CONFLICT", "REJECTED"];

function isResult(item: unknown): boolean {
  return statuses.includes(asObject(item)?.["status"]);
}

/** Reports whether the events are the cause; other refusals, such as one of the token, would meet any request. */
function blamesEvents(error: unknown): error is ApiError {
  if (!(error instanceof ApiError) || error instanceof TokenRefused) return false;
  return error.status === 413 || error.code === "MALFORMED_BODY";
}

function refusal({ status, code, detail, errors }: ApiError): Record<string, unknown> {
  const error = {
    code: code || (status === 413 ? "PAYLOAD_TOO_LARGE" : ""),
    message: detail,
    ...(errors.length > 0 && { errors }),
  };
  return { status: "REJECTED", error };
}

function readResult(item: Record<string, unknown>, id: string): Result {
  const status = item["status"] as Result["status"];
  const error = asObject(item["error"]);
  if (!error) return { id, status };
  const { code, message, retryAfter, errors } = error;
  return {
    id,
    status,
    error: {
      code: asString(code) ?? "",
      message: asString(message) ?? "",
      ...(typeof retryAfter === "number" && { retryAfter }),
      ...(Array.isArray(errors) && { errors: fieldProblems(errors) }),
    },
  };
}
