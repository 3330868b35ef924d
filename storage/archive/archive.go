// Package archive keeps the history in SQL: settled events and their deliveries, also after Redis has forgotten
// them. In PostgreSQL the tables have a partition for each day.
package archive

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/internal/partition"
	"spendhook/storage"
)

// Store is the history in a database. It is safe for concurrent use, also by several replicas. The errors of its
// methods wrap events.ErrUnavailable when the database is unreachable or too slow.
type Store struct{ db *storage.DB }

var _ history.Archive = (*Store)(nil)

// New returns the Store of a database that was opened with the option History. It fails until the database is
// migrated.
func New(db *storage.DB) *Store { return &Store{db: db} }

// writeLimit bounds each transaction that writes.
const writeLimit = 10 * time.Second

// unavailable adds events.ErrUnavailable to an error of storage.
func unavailable(err error) error {
	if errors.Is(err, storage.ErrUnavailable) {
		return fmt.Errorf("%w: %w", events.ErrUnavailable, err)
	}
	return err
}

// key names one acceptance of an event: the same id may be accepted again after the retention of Redis.
type key struct {
	Company  storage.Key `bun:"company,type:bytea"`
	ID       string      `bun:"id,type:text"`
	Accepted int64       `bun:"accepted,type:bigint"` // unix ms
	Nonce    int64       `bun:"nonce,type:bigint"`    // of the commit
}

// keyOf reads the header of a value, which package events/layout describes.
func keyOf(ref events.Ref, value string) (key, error) {
	k := key{Company: storage.Key(ref.Company), ID: ref.ID}
	if len(value) < len("S0000000000000")+8 {
		return k, fmt.Errorf("event %s has no header", ref)
	}
	accepted, err := strconv.ParseUint(value[1:14], 10, 63)
	if err != nil {
		return k, fmt.Errorf("event %s has a wrong header: %w", ref, err)
	}
	nonce, err := strconv.ParseUint(value[14:22], 16, 32)
	if err != nil {
		return k, fmt.Errorf("event %s has a wrong header: %w", ref, err)
	}
	k.Accepted, k.Nonce = int64(accepted), int64(nonce)
	return k, nil
}

func (k *key) compare(other *key) int {
	return cmp.Or(bytes.Compare(k.Company[:], other.Company[:]), strings.Compare(k.ID, other.ID),
		cmp.Compare(k.Accepted, other.Accepted), cmp.Compare(k.Nonce, other.Nonce))
}

type eventRow struct {
	bun.BaseModel `bun:"table:history_events,alias:e"`
	key

	Place float64 `bun:"place"`
	Value []byte  `bun:"value"` // nil: erased
	Terms *string `bun:"terms"` // in PostgreSQL
	terms []term
}

func newEvent(k key, a *history.Archived) eventRow {
	terms := termsOf(k, words(readContent(a.Ref, a.Value, "", "").text.String()))
	row := eventRow{key: k, Place: a.Place, Value: []byte(a.Value), Terms: new(numbers(terms)), terms: terms}
	if math.Floor(a.Place) != float64(k.Accepted) { // the index needs them in one order
		row.Place = float64(k.Accepted)
	}
	return row
}

func keysOf(rows []eventRow) []key {
	keys := make([]key, len(rows))
	for i := range rows {
		keys[i] = rows[i].key
	}
	return keys
}

type deliveryRow struct {
	bun.BaseModel `bun:"table:history_deliveries,alias:d"`
	key

	Subscriber storage.Key `bun:"subscriber"`
	Created    float64     `bun:"created"`
	Died       float64     `bun:"died"`
	Member     *string     `bun:"member"`
	Version    int64       `bun:"version"`
	Record     []byte      `bun:"record"`
}

func newDelivery(k key, d *history.ArchivedDelivery) deliveryRow {
	row := deliveryRow{
		key: k, Subscriber: storage.Key(d.Subscriber), Created: float64(d.Created), Died: d.Died,
		Version: versionOf(d.Record), Record: []byte(d.Record),
	}
	if d.Died > 0 {
		row.Member = new(k.ID + "/" + d.Subscriber.String())
	}
	return row
}

// versionOf reads the version of a delivery's record, which follows the letter of the status. It is 0 for
// a damaged record.
func versionOf(record string) int64 {
	head, _, found := strings.Cut(record, "|")
	if !found || len(head) < 2 {
		return 0
	}
	version, err := strconv.ParseInt(head[1:], 10, 64)
	if err != nil {
		return 0
	}
	return version
}

type companyRow struct {
	bun.BaseModel `bun:"table:history_companies,alias:c"`

	Company   storage.Key `bun:"company"`
	Partition int         `bun:"partition_number"`
}

func newCompany(company storage.Key) companyRow {
	return companyRow{Company: company, Partition: partition.Of(uuid.UUID(company))}
}
