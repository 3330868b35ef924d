// The tables of an inbox, and the statements of SQLite and PostgreSQL, which agree in all of this.

/** Settings of a store in a database. */
export interface StoreOptions {
  /**
   * The name of the inbox, at most 100 characters; "inbox" by default. Inboxes of several subscribers in one database need
   * names of their own; two processes of one inbox have the same name.
   */
  name?: string;
  /** The clock, in milliseconds; Date.now by default. */
  now?: () => number;
}

export const tables = `
  CREATE TABLE IF NOT EXISTS spendhook_inbox (inbox VARCHAR(100) NOT NULL, id VARCHAR(255) NOT NULL, sequence BIGINT,
    received_at BIGINT NOT NULL, PRIMARY KEY (inbox, id));
  CREATE TABLE IF NOT EXISTS spendhook_cursor (inbox VARCHAR(100) NOT NULL PRIMARY KEY, position VARCHAR(64) NOT NULL);`;

// The insertion does not look first whether the id is there: the unique key decides.
export const insertEvent = `INSERT INTO spendhook_inbox (inbox, id, sequence, received_at) VALUES (?, ?, ?, ?)
  ON CONFLICT (inbox, id) DO NOTHING`;
export const selectCursor = "SELECT position FROM spendhook_cursor WHERE inbox = ?";
export const upsertCursor = `INSERT INTO spendhook_cursor (inbox, position) VALUES (?, ?)
  ON CONFLICT (inbox) DO UPDATE SET position = excluded.position`;
export const deleteEvents = "DELETE FROM spendhook_inbox WHERE inbox = ? AND received_at < ?";
