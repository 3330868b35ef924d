import { setTimeout as sleep } from "node:timers/promises";

const maxWaiting = 10_000;

/** Knows which deliveries have come, by the event that each of them names as the one before it. */
export class Chain {
  readonly #lateness: number;
  readonly #waiting = new Map<number, number>(); // those that came before the one that they name, by its number
  #watched = false;
  #upTo = 0; // no event up to this number is missing
  #unknown = 0; // the highest number of a delivery that named none
  #opened = () => {}; // called when a delivery came whose predecessor is missing

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

  /** Notes the number of an event and of the one before it; null and 0: unknown. */
  delivered(number: number | null, previous: number | null): void {
    if (!this.#watched || number === null || number <= this.#upTo) return;
    if (previous && previous <= this.#upTo) {
      this.#link(number);
      return;
    }
    if (!previous || this.#waiting.size === maxWaiting) this.#unknown = Math.max(this.#unknown, number);
    else this.#waiting.set(previous, number);
    this.#opened();
  }

  /** Notes that the feed is about to be read, which answers all questions so far. Its result is for read. */
  reading(): number {
    this.#waiting.clear();
    this.#unknown = 0;
    return this.#upTo;
  }

  /** Notes that the feed was read up to a number. `before` is higher only after a wrong number in a delivery. */
  read(before: number, upTo: number): void {
    if (before > upTo) this.#upTo = upTo;
    this.#link(upTo);
  }

  /** Notes that nothing up to a number is missing, and goes on with the deliveries that follow. */
  #link(upTo: number): void {
    this.#upTo = Math.max(this.#upTo, upTo);
    for (const previous of [...this.#waiting.keys()].sort((a, b) => a - b)) {
      if (previous > this.#upTo) return;
      this.#upTo = Math.max(this.#upTo, this.#waiting.get(previous)!);
      this.#waiting.delete(previous);
    }
  }

  /** The highest number of a delivery whose predecessor may be missing; 0: there is none. */
  get highest(): number {
    return Math.max(this.#unknown > this.#upTo ? this.#unknown : 0, ...this.#waiting.values());
  }

  /** Whether the predecessor of a delivery up to a number may be missing still. */
  missing(upTo: number): boolean {
    return this.#unknown > this.#upTo || [...this.#waiting.values()].some((number) => number <= upTo);
  }

  /** Waits until an event has been missing for a while, but for at most some milliseconds, or until the signal is aborted. */
  async gap(atMost: number, signal: AbortSignal): Promise<void> {
    const end = new AbortController();
    const stop = () => end.abort();
    const timer = setTimeout(stop, atMost);
    signal.addEventListener("abort", stop);
    try {
      while (!signal.aborted && !end.signal.aborted) {
        const asked = this.highest;
        if (asked === 0) await this.#open(end.signal);
        else {
          await sleep(this.#lateness, undefined, { signal: end.signal }).catch(() => undefined);
          if (this.missing(asked)) return;
        }
      }
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", stop);
    }
  }

  #open(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      this.#opened = resolve;
      signal.addEventListener("abort", () => resolve(), { once: true });
    });
  }
}
