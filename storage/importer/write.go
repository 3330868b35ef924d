package importer

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/storage"
	"spendhook/storage/companies"
)

const chunkRows = 50 // rows that one statement inserts

// row has the values of a line, in the order of the columns of the kind.
type row struct {
	line   int64
	values []any
}

// known has the objects that the lines of a batch refer to: the companies with their currencies,
// the users with their companies, and the months that have a statement.
type known struct {
	now        time.Time
	companies  map[storage.Key]string
	users      map[storage.Key]storage.Key
	statements map[monthOf]storage.Key
	added      []row // unknown requesters, as inactive users
}

type monthOf struct {
	company     storage.Key
	year, month int
}

// batchWriter writes one batch in one transaction.
type batchWriter struct {
	tx      bun.Tx
	now     time.Time            // the default of missing times
	touched map[storage.Key]bool // companies whose lists of reimbursements change
	refused []Refusal
}

func (w *batchWriter) write(ctx context.Context, b *batch) error {
	for rank, entries := range b.entries {
		if len(entries) == 0 {
			continue
		}
		if err := w.writeRank(ctx, rank, entries); err != nil {
			return err
		}
	}
	return w.bumpRevisions(ctx)
}

func (w *batchWriter) writeRank(ctx context.Context, rank int, entries []numberedEntry) error {
	k, err := w.readKnown(ctx, rank, entries)
	if err != nil {
		return err
	}
	rows := make([]row, 0, len(entries))
	for _, e := range entries {
		if _, ok := k.companies[storage.Key(e.company())]; !ok && rank != rankCompany {
			w.refuse(e.line, "companyUuid: is not a known company")
			continue
		}
		values, err := e.values(k)
		if err != nil {
			w.refuse(e.line, err.Error())
			continue
		}
		if rank == rankUser || rank == rankReimbursement {
			w.touched[storage.Key(e.company())] = true
		}
		rows = append(rows, row{e.line, values})
	}
	if err := w.upsert(ctx, kinds[rankUser], k.added); err != nil {
		return err
	}
	if err := w.upsert(ctx, kinds[rank], rows); err != nil || rank != rankCompany {
		return err
	}
	return w.nameCompanies(ctx, entries)
}

// nameCompanies names the companies whose lines were not refused.
func (w *batchWriter) nameCompanies(ctx context.Context, entries []numberedEntry) error {
	refused := map[int64]bool{}
	for _, r := range w.refused {
		refused[r.Line] = true
	}
	var named []companies.Company
	for _, e := range entries {
		if c := e.entry.(*companyEntry); !refused[e.line] {
			named = append(named, companies.Company{UUID: c.UUID, Name: c.Name})
		}
	}
	if len(named) == 0 {
		return nil
	}
	return companies.Import(ctx, w.tx, named...)
}

func (w *batchWriter) refuse(line int64, reason string) {
	w.refused = append(w.refused, Refusal{Line: line, Reason: reason})
}

// readKnown reads the objects that the entries refer to.
func (w *batchWriter) readKnown(ctx context.Context, rank int, entries []numberedEntry) (*known, error) {
	k := &known{now: w.now, companies: map[storage.Key]string{}, users: map[storage.Key]storage.Key{}, statements: map[monthOf]storage.Key{}}
	if rank == rankCompany {
		return k, nil
	}
	var companies, users, statements []foundRow
	ids, holders := references(entries)
	err := w.find(ctx, &companies, "companies", "uuid, currency", "uuid", ids)
	if err == nil && len(holders) > 0 {
		err = w.find(ctx, &users, "users", "uuid, company_uuid", "uuid", holders)
	}
	if err == nil && rank == rankStatement {
		err = w.find(ctx, &statements, "statements", "uuid, company_uuid, year, month", "company_uuid", ids)
	}
	for _, c := range companies {
		k.companies[c.UUID] = c.Currency
	}
	for _, u := range users {
		k.users[u.UUID] = u.Company
	}
	for _, s := range statements {
		k.statements[monthOf{s.Company, s.Year, s.Month}] = s.UUID
	}
	return k, err
}

// foundRow has the columns that are read of a company, a user or a statement.
type foundRow struct {
	UUID     storage.Key `bun:"uuid"`
	Company  storage.Key `bun:"company_uuid"`
	Currency string      `bun:"currency"`
	Year     int         `bun:"year"`
	Month    int         `bun:"month"`
}

// find reads the rows that have one of the ids in the column by.
func (w *batchWriter) find(ctx context.Context, rows *[]foundRow, table, columns, by string, ids []storage.Key) error {
	return w.tx.NewSelect().Table(table).ColumnExpr(columns).Where("? IN ?", bun.Ident(by), bun.Tuple(ids)).Scan(ctx, rows)
}

func references(entries []numberedEntry) (companies, users []storage.Key) {
	seen := map[uuid.UUID]bool{}
	once := func(list *[]storage.Key, id uuid.UUID) {
		if !seen[id] {
			seen[id] = true
			*list = append(*list, storage.Key(id))
		}
	}
	for _, e := range entries {
		once(&companies, e.company())
		switch e := e.entry.(type) {
		case *cardEntry:
			once(&users, e.HolderUUID)
		case *reimbursementEntry:
			once(&users, e.Requester.UUID)
		}
	}
	return companies, users
}

// upsert inserts rows, or replaces the rows of the same uuid and company.
func (w *batchWriter) upsert(ctx context.Context, k kind, rows []row) error {
	columns := strings.Split(k.columns, ", ")
	var sets []string
	for _, c := range columns[1:] {
		sets = append(sets, c+" = excluded."+c)
	}
	places := "(?" + strings.Repeat(", ?", len(columns)-1) + ")"
	begin := "INSERT INTO " + k.table + " (" + k.columns + ") VALUES "
	end := " ON CONFLICT (uuid) DO UPDATE SET " +
		strings.Join(sets, ", ") + " WHERE " + k.table + "." + columns[1] + " = excluded." + columns[1]
	for chunk := range slices.Chunk(rows, chunkRows) {
		var values []any
		for _, r := range chunk {
			values = append(values, r.values...)
		}
		result, err := w.tx.NewRaw(begin+places+strings.Repeat(", "+places, len(chunk)-1)+end, values...).Exec(ctx)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil {
			return err
		} else if n < int64(len(chunk)) {
			if err := w.refuseForeign(ctx, k, columns[1], chunk); err != nil {
				return err
			}
		}
	}
	return nil
}

// refuseForeign refuses the lines whose value of the column guard differs from the existing row.
func (w *batchWriter) refuseForeign(ctx context.Context, k kind, guard string, rows []row) error {
	for _, r := range rows {
		other, err := w.tx.NewSelect().Table(k.table).Where("uuid = ?", r.values[0]).
			Where("? <> ?", bun.Ident(guard), r.values[1]).Exists(ctx)
		if err != nil {
			return err
		}
		if other {
			w.refuse(r.line, k.reason)
		}
	}
	return nil
}

func (w *batchWriter) bumpRevisions(ctx context.Context) error {
	if len(w.touched) == 0 {
		return nil
	}
	_, err := w.tx.NewUpdate().Table("companies").Set("reimbursements_rev = reimbursements_rev + 1").
		Where("uuid IN ?", bun.Tuple(slices.Collect(maps.Keys(w.touched)))).Exec(ctx)
	return err
}
