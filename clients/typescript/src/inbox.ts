import { setTimeout as sleep } from "node:timers/promises";

import { Chain } from "./chain.js";
import { ApiError, InvalidMessage, KeysUnavailable } from "./errors.js";
import { challengeOf, numberOf, readEvent, type WebhookEvent } from "./event.js";
import type { Feed, FeedEvent, FeedPage } from "./feed.js";
import { Fields, maxBody, type WebhookRequest, type WebhookResponse } from "./request.js";
import type { Store } from "./store.js";
import type { Verifier } from "./verifier.js";

/** What an Inbox does. */
export interface InboxOptions<T> {
  verifier: Verifier;
  store: Store<T>;
  /**
   * Works on a new event, in the transaction in which its id is noted. If it throws, or its promise is rejected, nothing is
   * kept, and the event is delivered again. An event whose work always fails stops each reading of the feed there, since none
   * is skipped: to give up on an event, return without an error. The work should end within 15 seconds: nothing bounds it, but
   * then Spendhook gives up on the attempt and repeats it.
   */
  work: (event: WebhookEvent, transaction: T) => unknown;
  /** What catchUp, fillGaps and follow read. */
  feed?: Feed;
  /**
   * The host name of the daemon, as WebHook-Request-Origin has it: that of its public_url. A receiver of the format
   * "cloudevents" agrees to deliveries from there. Without it, it agrees to none, because the handshake is not signed.
   */
  origin?: string | undefined;
  /**
   * Called with the reason of each answer 500 or 503, at most once a minute with that of an answer 401, with the reason of
   * each pause of fillGaps and follow, and when the daemon no longer keeps events since the last reading of the feed. By
   * default it is console.error.
   */
  failed?: (error: Error) => void;
  /**
   * Called for each event that the feed names without a body, also for one that the inbox has worked on. It may be called
   * again for one event, when a page is read again, and for several at once if there are several readings. What it throws, or
   * its promise is rejected with, is an error of the reading: the next one begins with this page again.
   */
  passed?: (event: Passed) => unknown;
}

/** An event that the inbox passes over, because the feed has no body of it. */
export interface Passed {
  id: string;
  sequence: number;
  /**
   * COMPACTED: its payload was removed, with time or by an erasure. CANCELLED: somebody cancelled its delivery.
   * QUARANTINED: an operator is to look at it.
   */
  reason: string;
}

/** What was read of the feed. */
export interface Progress {
  /** The number of events that the inbox lacked, and were worked on. */
  missing: number;
  /** The number of events that were passed over, because the daemon names them without a body; Passed.reason says why. */
  gone: number;
  /** The number of events that the daemon no longer keeps, whether they are for this subscriber or not. */
  forgotten: number;
}

const followWait = 20; // seconds for which one request waits for an event
const maxPause = 60; // seconds
const lateness = 5_000; // ms for which a delivery may come after the next one
const refusalEvery = 60_000; // ms between two reports of refused deliveries: anybody can send them
const checkEvery = 600_000; // ms; after the last event, no delivery says that it is missing

/**
 * Receives the deliveries to one subscriber, and works on each event once.
 *
 * The id of an event is noted in the transaction in which the work is done. So a repeated delivery, a crash, or the feed,
 * which has all events, changes the database once. Other effects of the work, such as a mail, may be repeated if the
 * transaction fails after them.
 */
export class Inbox<T> {
  readonly #options: InboxOptions<T>;
  readonly #chain = new Chain(lateness);
  #refusalReported = -Infinity; // when

  constructor(options: InboxOptions<T>) {
    this.#options = options;
  }

  /**
   * Answers a delivery; it does not throw. 204: the event was worked on, now or before. 200: the text of a challenge. 401:
   * a signature is missing or not valid. 413: the body has more than 1 MiB. 503: the keys cannot be read. 500: the store or
   * the work failed. After 500 and 503 Spendhook delivers again. The handshake of CloudEvents from the origin is answered 200,
   * any other request that is no POST 405.
   */
  async handle(request: WebhookRequest): Promise<WebhookResponse> {
    if (request.method !== "POST") return this.#handshake(request);
    if (request.body.length > maxBody) return { status: 413, body: "the body is too large" };
    try {
      await this.#options.verifier.verify(request);
    } catch (error) {
      if (error instanceof InvalidMessage) {
        this.#reportRefusal(error);
        return { status: 401, body: "the signature is not valid" };
      }
      this.#report(error);
      if (error instanceof KeysUnavailable) return { status: 503, body: "the keys cannot be read now" };
      return { status: 500, body: "try again later" };
    }
    const fields = new Fields(request.headers);
    const id = fields.value("webhook-id");
    const event = readEvent(id, numberOf(fields.value("webhook-sequence")), bufferOf(request.body));
    const challenge = challengeOf(event);
    if (challenge !== null) return { status: 200, body: challenge };
    try {
      const added = await this.#once(event);
      if (added) this.#chain.delivered(event.sequence, numberOf(fields.value("webhook-previous")));
    } catch (error) {
      this.#report(new Error(`event ${id}: ${messageOf(error)}`, { cause: error }));
      return { status: 500, body: "try again later" };
    }
    return { status: 204, body: "" };
  }

  /**
   * Reads the feed from where the last reading ended, to its end, and works on the events that the inbox lacks. At an
   * error, such as one of the work, it stops and throws; the next call begins with the page that failed, so no event is
   * skipped. If Redis has lost events that were read, it reads the feed from the start, and knows most events by their ids.
   * Deliveries may arrive meanwhile. TypeError: the inbox has no feed.
   */
  async catchUp({ signal }: { signal?: AbortSignal } = {}): Promise<Progress> {
    const reading = begun();
    while (await this.#page(0, reading, signal));
    return reading.progress;
  }

  /**
   * Catches up, and then again when the event that a delivery names as the one before it has not come within 5 seconds, when
   * a delivery names none, and every 10 minutes. It ends when the signal is aborted, and survives errors as follow does. It
   * costs less than follow, with which every event comes twice, but it knows only of deliveries to this process: if several
   * processes share a store, each of them reads the feed while deliveries come. TypeError: the inbox has no feed.
   */
  async fillGaps({ signal = new AbortController().signal }: { signal?: AbortSignal } = {}): Promise<void> {
    this.#chain.watched = true;
    try {
      await this.#repeat("fill gaps", signal, async () => {
        await this.catchUp({ signal });
        await this.#chain.gap(checkEvery, signal);
      });
    } finally {
      this.#chain.watched = false;
    }
  }

  /**
   * Catches up, and then works on each new event that the inbox lacks, until the signal is aborted. It survives errors: it
   * tries again after 1 second, then after twice the time, up to a minute. It is for a receiver that gets no deliveries; one
   * that does runs fillGaps. TypeError: the inbox has no feed.
   */
  follow({ signal = new AbortController().signal }: { signal?: AbortSignal } = {}): Promise<void> {
    const reading = begun();
    return this.#repeat("follow the feed", signal, () => this.#page(followWait, reading, signal));
  }

  /**
   * Lets the next reading begin at the start of the feed; events that are known are not worked on again. It is for who only
   * reads the feed: call it after an operator retried what was QUARANTINED, or a CANCELLED delivery was replayed. A reading
   * that is under way begins there with its next page. Call it again if a reading from the start was under way: that may have
   * moved the cursor since. It is rejected with an error of the store.
   */
  rewind(): Promise<void> {
    return this.#setCursor("");
  }

  /** Does something again and again, with a pause after an error. */
  async #repeat(what: string, signal: AbortSignal, step: () => Promise<unknown>): Promise<void> {
    if (!this.#options.feed) throw new TypeError("the inbox has no feed");
    for (let failures = 0; !signal.aborted;) {
      try {
        await step();
        failures = 0;
      } catch (error) {
        if (signal.aborted) return;
        this.#report(new Error(`${what}: ${messageOf(error)}`, { cause: error }));
        await sleep(1000 * followPause(failures++, error), undefined, { signal }).catch(() => undefined);
      }
    }
  }

  /** Reads a page and works on it. Returns whether to read on at once. */
  async #page(wait: number, reading: Reading, signal?: AbortSignal): Promise<boolean> {
    const { feed, store } = this.#options;
    if (!feed) throw new TypeError("the inbox has no feed");
    const cursor = await store.transaction((transaction) => transaction.cursor());
    const before = this.#chain.reading();
    let page: FeedPage;
    try {
      page = await feed.read(cursor, wait, signal);
    } catch (error) {
      if (!cursor || !(error instanceof ApiError) || error.code !== "FEED_CHANGED") throw error;
      await this.#setCursor(""); // other events have the numbers of those that Redis has lost
      return true;
    }
    reading.progress.forgotten += page.forgotten;
    for (const item of page.events) {
      signal?.throwIfAborted();
      await this.#take(item, reading.progress);
    }
    if (!cursor) reading.fromStart = true;
    if (page.forgotten > 0 && !reading.fromStart) {
      this.#report(new Error(`${page.forgotten} events since the last reading are no longer kept by the service`));
    }
    if (page.cursor !== cursor) await this.#setCursor(page.cursor, cursor);
    if (!page.more) {
      this.#chain.read(before, page.next);
      reading.fromStart = false;
    }
    return page.more;
  }

  /** Replaces the cursor; unless it is another one than expected, because of a rewind or another process. */
  #setCursor(next: string, expected?: string): Promise<void> {
    return this.#options.store.transaction(async (transaction) => {
      if (expected === undefined || (await transaction.cursor()) === expected) await transaction.setCursor(next);
    });
  }

  async #take({ id, sequence, gone, body }: FeedEvent, progress: Progress): Promise<void> {
    try {
      if (body === null) {
        progress.gone++;
        await this.#options.passed?.({ id, sequence, reason: gone ?? "" });
      } else if (await this.#once(readEvent(id, sequence, body))) progress.missing++;
    } catch (error) {
      throw new Error(`event ${id}: ${messageOf(error)}`, { cause: error });
    }
  }

  /** Agrees to deliveries if the daemon asks for that (CloudEvents, HTTP 1.1 Web Hooks for Event Delivery 1.0, 4). */
  #handshake({ method, headers }: WebhookRequest): WebhookResponse {
    const { origin } = this.#options;
    const from = new Fields(headers).value("webhook-request-origin");
    if (method !== "OPTIONS" || !origin || from.toLowerCase() !== origin.toLowerCase())
      return { status: 405, body: "only POST is allowed", headers: { allow: "POST" } };
    return { status: 200, body: "", headers: { allow: "POST", "webhook-allowed-origin": origin, "webhook-allowed-rate": "*" } };
  }

  /** Works on an event unless it is known. */
  #once(event: WebhookEvent): Promise<boolean> {
    return this.#options.store.transaction(async (transaction) => {
      if (!(await transaction.add(event.id, event.sequence))) return false;
      await this.#options.work(event, transaction.work);
      return true;
    });
  }

  #report(error: unknown): void {
    const { failed = console.error } = this.#options;
    failed(error instanceof Error ? error : new Error(messageOf(error)));
  }

  /** Reports a refused delivery. Without this, a wrong signing secret would go unnoticed. */
  #reportRefusal(error: InvalidMessage): void {
    const now = this.#options.verifier.now();
    if (Math.abs(now - this.#refusalReported) < refusalEvery) return; // the clock may have been set back
    this.#refusalReported = now;
    this.#report(new Error(`a delivery was refused: ${error.message}; check the signing secret`, { cause: error }));
  }
}

/** A reading of the feed. */
interface Reading {
  progress: Progress;
  /** Whether it began at the start, where events that are no longer kept are no news. */
  fromStart: boolean;
}

function begun(): Reading {
  return { progress: { missing: 0, gone: 0, forgotten: 0 }, fromStart: false };
}

/** Returns how long fillGaps and follow wait after an error, in seconds: longer if the daemon asked for that. */
export function followPause(failures: number, error: unknown): number {
  const asked = error instanceof ApiError ? (error.retryAfter ?? 0) : 0;
  return Math.min(Math.max(2 ** Math.min(failures, 6), asked), maxPause);
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function bufferOf(body: Uint8Array): Buffer {
  return Buffer.isBuffer(body) ? body : Buffer.from(body.buffer, body.byteOffset, body.byteLength);
}
