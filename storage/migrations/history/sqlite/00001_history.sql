-- The history of settled events: the tables of ../postgres without partitions, and an index to find
-- what is to be removed. The full-text index has the terms of events as words, by the number of the event.

-- +goose Up
CREATE TABLE history_companies (
    company BLOB NOT NULL PRIMARY KEY,
    partition_number INTEGER NOT NULL
);
CREATE INDEX history_companies_order ON history_companies (partition_number, company);

CREATE TABLE history_events (
    number INTEGER PRIMARY KEY,
    company BLOB NOT NULL,
    id TEXT NOT NULL,
    accepted INTEGER NOT NULL,
    nonce INTEGER NOT NULL,
    place REAL NOT NULL,
    value BLOB,
    UNIQUE (company, id, accepted, nonce)
);
CREATE INDEX history_events_place ON history_events (company, accepted, place, id) WHERE value IS NOT NULL;
CREATE INDEX history_events_accepted ON history_events (accepted);
CREATE VIRTUAL TABLE history_terms USING fts5 (terms, content = '', contentless_delete = 1, detail = none, tokenize = ascii);

CREATE TABLE history_deliveries (
    company BLOB NOT NULL,
    id TEXT NOT NULL,
    accepted INTEGER NOT NULL,
    nonce INTEGER NOT NULL,
    subscriber BLOB NOT NULL,
    created REAL NOT NULL,
    died REAL NOT NULL,
    member TEXT,
    version INTEGER NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (company, id, accepted, nonce, subscriber)
);
CREATE INDEX history_deliveries_created ON history_deliveries (company, subscriber, created, id);
CREATE INDEX history_deliveries_dead ON history_deliveries (company, died, member) WHERE died > 0;
CREATE INDEX history_deliveries_dead_of ON history_deliveries (company, subscriber, died, id) WHERE died > 0;
