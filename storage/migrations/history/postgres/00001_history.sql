-- The history of settled events. Times are milliseconds since 1970-01-01 UTC. Both tables have a
-- partition for each day of acceptance, which the daemon makes and drops. The primary key names one
-- acceptance of an event: an id may be accepted again after the retention of Redis.

-- +goose Up
CREATE TABLE history_companies (
    company BYTEA NOT NULL PRIMARY KEY,
    partition_number INTEGER NOT NULL
);
CREATE INDEX history_companies_order ON history_companies (partition_number, company);

CREATE TABLE history_events (
    company BYTEA NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    accepted BIGINT NOT NULL,
    nonce BIGINT NOT NULL, -- of the commit that accepted it
    place DOUBLE PRECISION NOT NULL, -- accepted and a fraction
    value BYTEA, -- NULL: erased, and not to be written again
    terms INTEGER[], -- hashes of the words of the event
    PRIMARY KEY (company, id, accepted, nonce)
) PARTITION BY RANGE (accepted);
CREATE INDEX history_events_place ON history_events (company, accepted, place, id) WHERE value IS NOT NULL;
CREATE INDEX history_events_terms ON history_events USING GIN (terms);

CREATE TABLE history_deliveries (
    company BYTEA NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    accepted BIGINT NOT NULL,
    nonce BIGINT NOT NULL,
    subscriber BYTEA NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    died DOUBLE PRECISION NOT NULL, -- 0: it is not dead
    member TEXT COLLATE "C", -- its name in the index of the dead: id/subscriber. NULL: it is not dead
    version BIGINT NOT NULL, -- of the record
    record BYTEA NOT NULL,
    PRIMARY KEY (company, id, accepted, nonce, subscriber)
) PARTITION BY RANGE (accepted);
-- They include the time of acceptance because the daemon reads a limited number of days at once.
CREATE INDEX history_deliveries_created ON history_deliveries (company, subscriber, created, id) INCLUDE (accepted);
CREATE INDEX history_deliveries_dead ON history_deliveries (company, died, member) INCLUDE (accepted) WHERE died > 0;
CREATE INDEX history_deliveries_dead_of ON history_deliveries (company, subscriber, died, id) INCLUDE (accepted) WHERE died > 0;
