package archive

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/internal/partition"
	"spendhook/internal/timestamp"
	"spendhook/storage"
)

// Index reads up to n places of a span after the given one; see history.Archive. It calls a delivery without
// a Subscriber in the span by the id of its event, a slash and its subscriber.
func (s *Store) Index(ctx context.Context, sp history.Span, after history.Place, n int) ([]history.Place, error) {
	windows, err := s.windows(ctx)
	if err != nil {
		return nil, err
	}
	if sp.Ascending {
		slices.Reverse(windows)
	}
	// Events are listed in the order of their acceptance. Deliveries are created, and die, at any time after it.
	inOrder := sp.Subscriber == nil && !sp.Deaths
	low, high := bounds(sp, after)
	if !inOrder {
		low, high = 0, high+dayMS // clocks may differ
	}
	var found []struct {
		Score  float64
		Member string
	}
	var places []history.Place
	for _, w := range windows {
		if inOrder && len(places) >= n {
			break
		}
		if !w.overlaps(low, high) {
			continue
		}
		err := s.db.Query(ctx, "read index of history", func(ctx context.Context, db bun.IDB) error {
			return indexQuery(db, sp, after, n, w).Scan(ctx, &found)
		})
		if err != nil {
			return nil, unavailable(err)
		}
		for _, f := range found {
			places = append(places, history.Place{MS: f.Score, ID: f.Member})
		}
	}
	slices.SortFunc(places, func(a, b history.Place) int {
		order := cmp.Or(cmp.Compare(a.MS, b.MS), strings.Compare(a.ID, b.ID))
		if sp.Ascending {
			return order
		}
		return -order
	})
	return places[:min(n, len(places))], nil
}

func indexQuery(db bun.IDB, sp history.Span, after history.Place, n int, w window) *bun.SelectQuery {
	q := db.NewSelect().Where("company = ?", storage.Key(sp.Company)).Where("?", w.where("accepted")).Limit(int64(n))
	if sp.Subscriber != nil {
		q = q.Where("subscriber = ?", storage.Key(*sp.Subscriber))
	}
	switch {
	case sp.Deaths && sp.Subscriber == nil:
		return page(q.Table("history_deliveries").Where("died > 0"), sp, after, "died", "member")
	case sp.Deaths:
		return page(q.Table("history_deliveries").Where("died > 0"), sp, after, "died", "id")
	case sp.Subscriber != nil:
		return page(q.Table("history_deliveries"), sp, after, "created", "id")
	default: // accepted is the first, so that PostgreSQL reads one partition after the other
		return page(q.Table("history_events").Where("value IS NOT NULL"), sp, after, "accepted", "place", "id")
	}
}

// bounds returns the times of what is in a span and after a place, both included.
func bounds(sp history.Span, after history.Place) (low, high int64) {
	low, high = sp.Low, min(sp.High, timestamp.MaxMillis)
	if ms := int64(math.Floor(after.MS)); after.ID != "" && sp.Ascending {
		low = max(low, ms)
	} else if after.ID != "" {
		high = min(high, ms)
	}
	return low, high
}

// page restricts q to the span and to what is after a place. The last columns of the order are those of the
// score and of the member; another one before them has the whole milliseconds of the score.
func page(q *bun.SelectQuery, sp history.Span, after history.Place, columns ...string) *bun.SelectQuery {
	low, high := bounds(sp, after)
	direction, than := " DESC", "<"
	if sp.Ascending {
		direction, than = "", ">"
	}
	if after.ID != "" {
		if after.Inclusive {
			than += "="
		}
		place := []any{int64(math.Floor(after.MS)), after.MS, after.ID}
		q = q.Where("(?) "+than+" (?)", bun.Safe(strings.Join(columns, ", ")), bun.List(place[3-len(columns):]))
	}
	score, member := columns[len(columns)-2], columns[len(columns)-1]
	return q.ColumnExpr("? AS score, ? AS member", bun.Ident(score), bun.Ident(member)).
		Where("? >= ? AND ? < ?", bun.Ident(columns[0]), low, bun.Ident(columns[0]), high+1).
		OrderExpr(strings.Join(columns, direction+", ") + direction)
}

// Get reads events with their deliveries; see history.Archive.
func (s *Store) Get(ctx context.Context, refs []events.Ref) ([]*history.Archived, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	windows, err := s.windows(ctx)
	if err != nil {
		return nil, err
	}
	missing := slices.Clone(refs)
	read := make(map[events.Ref]*history.Archived, len(refs))
	for _, w := range windows { // the newest event with an id is in the first window that has one
		if err := s.get(ctx, missing, w, read); err != nil {
			return nil, unavailable(err)
		}
		missing = slices.DeleteFunc(missing, func(ref events.Ref) bool { return read[ref] != nil })
		if len(missing) == 0 {
			break
		}
	}
	found := make([]*history.Archived, len(refs))
	for i, ref := range refs {
		found[i] = read[ref]
	}
	return found, nil
}

// get adds the events of a window. Of many windows most have none, which takes one statement.
func (s *Store) get(ctx context.Context, refs []events.Ref, w window, read map[events.Ref]*history.Archived) error {
	var rows []eventRow
	var deliveries []deliveryRow
	query := func(ctx context.Context, db bun.IDB) error {
		rows = nil
		return eventsQuery(db, refs, w).Scan(ctx, &rows)
	}
	if w != (window{}) {
		if err := s.db.Query(ctx, "look for events in history", query); err != nil || len(rows) == 0 {
			return err
		}
	}
	err := s.db.Snapshot(ctx, "read history", func(ctx context.Context, db bun.IDB) error {
		if err := query(ctx, db); err != nil || len(rows) == 0 {
			return err
		}
		return deliveriesQuery(db, rows, w).Scan(ctx, &deliveries)
	})
	if err != nil {
		return err
	}
	for _, row := range rows {
		ref := events.Ref{Company: uuid.UUID(row.Company), ID: row.ID}
		read[ref] = &history.Archived{Ref: ref, Place: row.Place, Value: string(row.Value)}
	}
	for _, d := range deliveries {
		a := read[events.Ref{Company: uuid.UUID(d.Company), ID: d.ID}]
		a.Deliveries = append(a.Deliveries, history.ArchivedDelivery{
			Subscriber: uuid.UUID(d.Subscriber), Record: string(d.Record), Created: int64(d.Created), Died: d.Died,
		})
	}
	return nil
}

type refRow struct {
	Company storage.Key `bun:"company,type:bytea"`
	ID      string      `bun:"id,type:text"`
}

// refRows returns each ref once.
func refRows(refs []events.Ref) *[]refRow {
	rows := make([]refRow, 0, len(refs))
	seen := make(map[events.Ref]bool, len(refs))
	for _, ref := range refs {
		if !seen[ref] {
			seen[ref] = true
			rows = append(rows, refRow{storage.Key(ref.Company), ref.ID})
		}
	}
	return &rows
}

// eventsQuery reads the newest event of a window with each id. PostgreSQL begins with the newest partition and ends with
// the first one that has the event.
func eventsQuery(db bun.IDB, refs []events.Ref, w window) *bun.SelectQuery {
	q := db.NewSelect().With("r", db.NewValues(refRows(refs))).ColumnExpr("e.company, e.id, e.accepted, e.nonce, e.place, e.value")
	newest := db.NewSelect().TableExpr("history_events AS n").Where("n.company = r.company AND n.id = r.id AND n.value IS NOT NULL").
		Where("?", w.where("n.accepted")).OrderExpr("n.accepted DESC, n.nonce DESC").Limit(1)
	if storage.IsPostgres(db) {
		return q.TableExpr("r CROSS JOIN LATERAL (?) AS e", newest.ColumnExpr("*"))
	}
	return q.TableExpr("r CROSS JOIN history_events AS e").Where("e.number = (?)", newest.ColumnExpr("n.number"))
}

func deliveriesQuery(db bun.IDB, rows []eventRow, w window) *bun.SelectQuery {
	q := db.NewSelect().With("r", db.NewValues(new(keysOf(rows)))).ColumnExpr("d.*").OrderExpr("d.company, d.id, d.subscriber")
	return each(q, "history_deliveries AS d", "d.company = r.company AND d.id = r.id AND d.accepted = r.accepted AND d.nonce = r.nonce", w)
}

// each joins the values r with a table, by looking into its index once for each of them: CROSS JOIN forces SQLite to do so,
// OFFSET PostgreSQL, which else may read the whole table. The table has a name of one letter.
func each(q *bun.SelectQuery, table, condition string, w window) *bun.SelectQuery {
	if name := table[len(table)-1:]; storage.IsPostgres(q) {
		return q.TableExpr("r CROSS JOIN LATERAL (SELECT * FROM "+table+" WHERE "+condition+" AND ? OFFSET 0) AS "+name, w.where(name+".accepted"))
	}
	return q.TableExpr("r CROSS JOIN " + table).Where(condition)
}

// Companies lists companies with events; see history.Archive.
func (s *Store) Companies(ctx context.Context, after uuid.UUID, n int) ([]uuid.UUID, error) {
	var found []storage.Key
	err := s.db.Query(ctx, "list companies of history", func(ctx context.Context, db bun.IDB) error {
		return companiesQuery(db, after, n).Scan(ctx, &found)
	})
	companies := make([]uuid.UUID, len(found))
	for i, company := range found {
		companies[i] = uuid.UUID(company)
	}
	return companies, unavailable(err)
}

func companiesQuery(db bun.IDB, after uuid.UUID, n int) *bun.SelectQuery {
	q := db.NewSelect().Table("history_companies").Column("company").OrderExpr("partition_number, company").Limit(int64(n))
	if after != uuid.Nil {
		q = q.Where("(partition_number, company) > (?, ?)", partition.Of(after), storage.Key(after))
	}
	return q
}
