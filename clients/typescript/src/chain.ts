import { EventEmitter, once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";

const maxWaiting = 10_000;

/** Knows which deliveries have come, by the event that each of them names as the one before it. */
export class Chain {
  readonly #lateness: number;
  readonly #events = new EventEmitter();
  readonly #waiting = new Map<number, number>(); // those that came before the one that they name, by its number
  #watched = false;
  #upTo = 0; // no event up to this number is missing
  #unknown = 0; // up to this number the feed must be read: a delivery named none

  /** @param lateness how long after a delivery the one before it may come, in milliseconds */
  constructor(lateness: number) {
    this.#lateness = lateness;
  }

  /** Only a chain that is watched keeps deliveries. */
  set watched(on: boolean) {
    this.#watched = on;
    this.#waiting.clear();
    this.#unknown = 0;
  }

  /** Notes the number of an event and of the one before it; null: unknown. */
  delivered(number: number | null, previous: number | null): void {
    if (!this.#watched || number === null || number <= this.#upTo) return;
    if (previous !== null && previous <= this.#upTo) {
      this.read(number);
      return;
    }
    if (previous === null || this.#waiting.size === maxWaiting) this.#unknown = Math.max(this.#unknown, number);
    else this.#waiting.set(previous, number);
    this.#events.emit("open");
  }

  /** Notes that no event up to a number is missing, such as when the feed was read. */
  read(upTo: number): void {
    this.#upTo = Math.max(this.#upTo, upTo);
    for (const previous of [...this.#waiting.keys()].sort((a, b) => a - b)) {
      if (previous > this.#upTo) return;
      this.#upTo = Math.max(this.#upTo, this.#waiting.get(previous)!);
      this.#waiting.delete(previous);
    }
  }

  /** Whether an event may be missing. */
  get open(): boolean {
    return this.#unknown > this.#upTo || this.#waiting.size > 0;
  }

  /** Waits until an event has been missing for a while, but no longer than until the signal is aborted. */
  async gap(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      if (!this.open) await once(this.#events, "open", { signal }).catch(() => undefined);
      await sleep(this.#lateness, undefined, { signal }).catch(() => undefined);
      if (this.open) return;
    }
  }
}
