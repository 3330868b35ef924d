-- The names of companies, for people. A company may have none, and no record in companies.

-- +goose Up
CREATE TABLE company_names (
    uuid BYTEA NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    name_folded TEXT NOT NULL -- as users.name_folded
);
CREATE INDEX company_names_folded ON company_names (name_folded, uuid);
INSERT INTO company_names (uuid, name, name_folded) SELECT uuid, name, lower(name) FROM companies;
