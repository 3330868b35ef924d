package outbox

import (
	_ "embed" // the schema
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// deadSuffix is added to the name of a table for that of its dead rows.
const deadSuffix = "_dead"

// maxIdentifier is how many bytes of a name PostgreSQL reads.
const maxIdentifier = 63

//go:embed schema.sql
var schema string

// Schema returns the SQL that creates a table and that of its dead rows, unless they exist. table is as in Options.
func Schema(table string) (string, error) {
	n, err := parseTable(table)
	if err != nil {
		return "", err
	}
	if table == "" || table == defaultTable {
		return schema, nil
	}
	return strings.NewReplacer(defaultTable+deadSuffix, n.dead, defaultTable, n.table).Replace(schema), nil
}

// columns are those that the two tables share, besides seq.
const columns = `id, company_uuid, event, key, "timestamp", metadata, error_code, error_message`

// names are the quoted names of the tables, and the statements with them.
type names struct {
	table, dead                       string
	listen, count, read, remove, bury string
}

// parseTable splits a name into its schema, if any, and the table.
func parseTable(name string) (names, error) {
	if name == "" {
		name = defaultTable
	}
	parts := strings.Split(name, ".")
	for _, part := range parts {
		if part == "" || strings.ContainsRune(part, 0) || len(parts) > 2 || len(part) > maxIdentifier-len(deadSuffix) {
			return names{}, fmt.Errorf("the table of the outbox is not a name of 1 to %d bytes, after that of a schema and a dot",
				maxIdentifier-len(deadSuffix))
		}
	}
	last := parts[len(parts)-1]
	channel := pgx.Identifier{last}.Sanitize()
	table := pgx.Identifier(parts).Sanitize()
	parts[len(parts)-1] = last + deadSuffix
	return statements(channel, table, pgx.Identifier(parts).Sanitize()), nil
}

func statements(channel, table, dead string) names {
	return names{
		table: table, dead: dead,
		listen: `LISTEN ` + channel,
		count:  `SELECT count(*) FROM (SELECT FROM ` + table + ` LIMIT $1) AS counted`,
		// Each time the lowest rows are read that are not in memory, and not those after the last one: a transaction
		// may commit late, and its row must come before any of its key that was inserted afterwards. The JSON is made
		// here so that metadata keeps its spelling. MS cuts off microseconds, as the API does.
		read: `SELECT seq, COALESCE(key, ''), "timestamp", json_build_object(
				'id', id, 'companyUuid', company_uuid, 'event', event,
				'timestamp', to_char("timestamp" AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
				'metadata', metadata, 'errorCode', error_code, 'errorMessage', error_message)::text
			FROM ` + table + ` WHERE seq <> ALL ($1::bigint[]) ORDER BY seq LIMIT $2`,
		remove: `DELETE FROM ` + table + ` WHERE seq = ANY ($1::bigint[])`,
		// A row that is gone, since another relay moved it, is not inserted again.
		bury: `WITH gone AS (DELETE FROM ` + table + ` WHERE seq = ANY ($1::bigint[]) RETURNING seq, ` + columns + `)
			INSERT INTO ` + dead + ` (seq, ` + columns + `, reason)
			SELECT gone.seq, ` + columns + `, why.reason
			FROM gone JOIN unnest($1::bigint[], $2::text[]) AS why (seq, reason) ON why.seq = gone.seq ORDER BY gone.seq`,
	}
}
