import { Turns } from "./turns.js";

/** What an Inbox does in a transaction. */
export interface Transaction<T> {
  /** What the work gets, such as a connection of a database. */
  readonly work: T;
  /**
   * Notes an event. False: it was noted before, by a transaction that was committed, or by this one. While another
   * transaction with this id is open, it waits for that one, or fails. The sequence is null if it is unknown.
   */
  add(id: string, sequence: number | null): boolean | Promise<boolean>;
  /** Returns the place from which the feed is to be read; "" at first. */
  cursor(): string | Promise<string>;
  /** Replaces the cursor, which has at most 64 characters. */
  setCursor(cursor: string): void | Promise<void>;
}

/**
 * Keeps the ids of the events that were worked on, and the place in the feed. Implement it for another database: note the
 * id by an INSERT that does nothing if the id is there.
 */
export interface Store<T> {
  /**
   * Calls a function. It keeps everything that the function did if that returns or its promise is fulfilled; else nothing,
   * and then the promise is rejected with the error.
   */
  transaction<R>(fn: (transaction: Transaction<T>) => R | Promise<R>): Promise<R>;
}

/** A store for tests: it forgets everything with the process. One transaction runs at a time. */
export class MemoryStore implements Store<undefined> {
  readonly #turns = new Turns();
  readonly #ids = new Set<string>();
  #cursor = "";

  /** Calls a function, and then makes its changes unless it failed. */
  transaction<R>(fn: (transaction: Transaction<undefined>) => R | Promise<R>): Promise<R> {
    return this.#turns.run(async () => {
      const added = new Set<string>();
      let cursor = this.#cursor;
      const result = await fn({
        work: undefined,
        add: (id) => !this.#ids.has(id) && !added.has(id) && !!added.add(id),
        cursor: () => cursor,
        setCursor: (next) => void (cursor = next),
      });
      for (const id of added) this.#ids.add(id);
      this.#cursor = cursor;
      return result;
    });
  }
}
