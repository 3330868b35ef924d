import type { DatabaseSync, StatementSync } from "node:sqlite";
import { setTimeout as sleep } from "node:timers/promises";

import { deleteEvents, insertEvent, selectCursor, tables, upsertCursor, type StoreOptions } from "./statements.js";
import type { Store, Transaction } from "./store.js";
import { Turns } from "./turns.js";

/** Settings of an SqlStore. */
export interface SqlStoreOptions extends StoreOptions {
  /** How long a transaction waits for another process that writes, in seconds; 10 by default. */
  busyTimeout?: number;
}

const busy = 5; // SQLITE_BUSY
const busyPause = 10; // ms

/** One queue for each connection, however many stores use it: a connection has one transaction at a time. */
const queues = new WeakMap<DatabaseSync, Turns>();

/**
 * A store in SQLite by node:sqlite (Node.js 24 or later). The work gets the DatabaseSync, within the transaction.
 *
 * Give it a connection of its own: a transaction stays open while the work waits for a promise, and whatever else uses the
 * connection meanwhile would be part of it. Transactions of one connection run one after the other, so work that waits for
 * long holds up all deliveries. Several processes, or several connections, may share the file: one writes, the others wait
 * without blocking the process. `PRAGMA journal_mode = WAL` lets others read meanwhile.
 */
export class SqlStore implements Store<DatabaseSync> {
  readonly #db: DatabaseSync;
  readonly #name: string;
  readonly #busyTimeout: number;
  readonly #now: () => number;
  readonly #turns: Turns;
  readonly #statements = new Map<string, StatementSync>();

  constructor(db: DatabaseSync, { name = "inbox", busyTimeout = 10, now = Date.now }: SqlStoreOptions = {}) {
    this.#db = db;
    this.#name = name;
    this.#busyTimeout = busyTimeout * 1000;
    this.#now = now;
    this.#turns = queues.get(db) ?? new Turns();
    queues.set(db, this.#turns);
  }

  /** Creates the tables spendhook_inbox and spendhook_cursor unless they exist. */
  async migrate(): Promise<void> {
    await this.#exclusive(() => this.#db.exec(tables));
  }

  /**
   * Removes the ids of events that this inbox received before so many seconds, and returns how many. An event that is
   * delivered after its id was removed is worked on once more. So olderThan must be more than the sender keeps events (7 days
   * by default, longer where the operator says so), and more than it takes until somebody replays one.
   */
  forget(olderThan: number): Promise<number> {
    const before = this.#seconds() - olderThan;
    return this.#exclusive(() => Number(this.#statement(deleteEvents).run(this.#name, before).changes));
  }

  /** Runs a function in a transaction. Within it, another transaction of the same connection cannot begin. */
  transaction<R>(fn: (transaction: Transaction<DatabaseSync>) => R | Promise<R>): Promise<R> {
    return this.#exclusive(() => fn(this.#open()));
  }

  #exclusive<R>(fn: () => R | Promise<R>): Promise<R> {
    return this.#turns.run(async () => {
      await this.#begin();
      try {
        const result = await fn();
        this.#db.exec("COMMIT");
        return result;
      } catch (error) {
        if (this.#db.isTransaction) this.#db.exec("ROLLBACK"); // SQLite has undone it after some errors
        throw error;
      }
    });
  }

  /**
   * Begins a transaction that may write, so that it cannot fail for another writer later. It does not leave the waiting to
   * SQLite, which would block the process, and for ever if the other transaction is one of this process.
   */
  async #begin(): Promise<void> {
    for (const until = performance.now() + this.#busyTimeout; ;) {
      try {
        return this.#db.exec("BEGIN IMMEDIATE");
      } catch (error) {
        if (((error as { errcode?: number }).errcode ?? 0) % 256 !== busy || performance.now() >= until) throw error;
      }
      await sleep(busyPause);
    }
  }

  #open(): Transaction<DatabaseSync> {
    return {
      work: this.#db,
      add: (id, sequence) => this.#statement(insertEvent).run(this.#name, id, sequence, this.#seconds()).changes === 1,
      cursor: () => String(this.#statement(selectCursor).get(this.#name)?.["position"] ?? ""),
      setCursor: (cursor) => void this.#statement(upsertCursor).run(this.#name, cursor),
    };
  }

  #seconds(): number {
    return Math.floor(this.#now() / 1000);
  }

  #statement(sql: string): StatementSync {
    let statement = this.#statements.get(sql);
    if (!statement) {
      this.#statements.set(sql, (statement = this.#db.prepare(sql)));
      statement.setReadBigInts(false); // the options of the connection are for the work
      statement.setReturnArrays(false);
    }
    return statement;
  }
}
