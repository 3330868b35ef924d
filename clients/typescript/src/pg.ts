import { deleteEvents, insertEvent, selectCursor, tables, upsertCursor, type StoreOptions } from "./statements.js";
import type { Store, Transaction } from "./store.js";

/** A client of a pool, such as a PoolClient of `pg`. */
export interface PgClient {
  query(text: string, values?: unknown[]): Promise<{ command: string; rowCount: number | null; rows: any[] }>;
  /** Returns the client to the pool. With an error, the pool drops the connection. */
  release(error?: Error): void;
  on?(event: "error", listener: (error: Error) => void): unknown;
  removeListener?(event: "error", listener: (error: Error) => void): unknown;
}

/** A pool of clients, such as a Pool of `pg`. */
export interface PgPool<C extends PgClient = PgClient> {
  connect(): Promise<C>;
  connect(callback: (...args: any[]) => void): void; // that of pg, without which C would not be inferred
}

const add = numbered(insertEvent);
const getCursor = numbered(selectCursor);
const putCursor = numbered(upsertCursor);
const forget = numbered(deleteEvents);

/** Replaces each ? by $1, $2 and so on. */
function numbered(statement: string): string {
  let n = 0;
  return statement.replaceAll("?", () => `$${++n}`);
}

/**
 * A store in PostgreSQL by a pool of the package `pg`. The work gets the client, within the transaction; it must neither end
 * the transaction nor release the client. Each transaction has a connection of its own, so several run at the same time, and
 * several processes may share the database.
 */
export class PgStore<C extends PgClient = PgClient> implements Store<C> {
  readonly #pool: PgPool<C>;
  readonly #name: string;
  readonly #now: () => number;

  constructor(pool: PgPool<C>, { name = "inbox", now = Date.now }: StoreOptions = {}) {
    this.#pool = pool;
    this.#name = name;
    this.#now = now;
  }

  /** Creates the tables spendhook_inbox and spendhook_cursor unless they exist. */
  async migrate(): Promise<void> {
    const create = () => this.transaction(({ work }) => work.query(tables));
    await create().catch(create); // PostgreSQL refuses the second of two processes that create a table at the same time
  }

  /**
   * Removes the ids of events that this inbox received before so many seconds, and returns how many. SqlStore.forget says how
   * long olderThan must be.
   */
  forget(olderThan: number): Promise<number> {
    const values = [this.#name, this.#seconds() - olderThan];
    return this.transaction(async ({ work }) => (await work.query(forget, values)).rowCount ?? 0);
  }

  /** Runs a function in a transaction, with a client of the pool. */
  async transaction<R>(fn: (transaction: Transaction<C>) => R | Promise<R>): Promise<R> {
    const client = await this.#pool.connect();
    let broken: Error | undefined;
    const lost = (error: Error) => void (broken = error);
    client.on?.("error", lost); // without a listener, a connection that is lost during the work would end the process
    try {
      await client.query("BEGIN");
      const result = await fn(this.#open(client));
      // PostgreSQL answers ROLLBACK, which is no error, if the work has caught the error of a statement.
      if ((await client.query("COMMIT")).command !== "COMMIT") {
        throw new Error("the transaction was rolled back, because a statement in it failed");
      }
      return result;
    } catch (error) {
      await client.query("ROLLBACK").catch(lost);
      throw error;
    } finally {
      client.removeListener?.("error", lost);
      client.release(broken);
    }
  }

  #open(client: C): Transaction<C> {
    return {
      work: client,
      add: async (id, sequence) => (await client.query(add, [this.#name, id, sequence, this.#seconds()])).rowCount === 1,
      cursor: async () => (await client.query(getCursor, [this.#name])).rows[0]?.position ?? "",
      setCursor: async (cursor) => void (await client.query(putCursor, [this.#name, cursor])),
    };
  }

  #seconds(): number {
    return Math.floor(this.#now() / 1000);
  }
}
