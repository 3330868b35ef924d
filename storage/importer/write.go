package importer

import (
	"context"
	"database/sql"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/storage"
	"spendhook/storage/column"
)

// chunkRows is how many rows one statement inserts.
const chunkRows = 50

// table names the columns that an import writes. The first is the key; guard is
// the column that an existing row must agree in, or reason tells why not.
type table struct {
	name          string
	columns       []string
	guard, reason string
}

const foreign = "uuid: belongs to another company"

var tables = [ranks]table{
	rankCompany: {
		"companies",
		[]string{"uuid", "name", "currency", "credit_limit", "region"},
		"currency", "currency: the company has cards in another one",
	},
	rankUser: {
		"users",
		[]string{"uuid", "company_uuid", "username", "name", "name_folded", "erp_id", "active"},
		"company_uuid", foreign,
	},
	rankLocation: {
		"locations",
		[]string{"uuid", "company_uuid", "name", "code", "status", "created_at"},
		"company_uuid", foreign,
	},
	rankCard: {
		"cards", []string{
			"uuid", "company_uuid", "holder_uuid", "last_four", "type", "status", "name",
			"threshold", "periodicity", "issued_at",
		}, "company_uuid", foreign,
	},
	rankStatement: {
		"statements",
		[]string{"uuid", "company_uuid", "year", "month", "status", "total", "currency", "closing_day"},
		"company_uuid", foreign,
	},
	rankReimbursement: {
		"reimbursements", []string{
			"uuid", "company_uuid", "recency", "status", "category", "requester_uuid", "creation_day",
			"expense_day", "approval_day", "payment_day", "amount", "currency", "detail",
		}, "company_uuid", foreign,
	},
}

// row is a line's values, in the order of its table's columns.
type row struct {
	line   int64
	values []any
}

// known is what the lines of a batch refer to: the companies' currencies, each user's
// company, the months that have a statement.
type known struct {
	companies  map[column.Key]string
	users      map[column.Key]column.Key
	statements map[monthOf]column.Key
	added      []*userEntry
}

type monthOf struct {
	company     column.Key
	year, month int
}

func (k *known) addUser(u *userEntry) {
	k.users[column.Key(u.UUID)] = column.Key(u.CompanyUUID)
	k.added = append(k.added, u)
}

// statement is an upsert of so many rows.
type statement struct {
	table string
	rows  int
}

// batchWriter writes one batch in one transaction.
type batchWriter struct {
	tx       bun.Tx
	prepared map[statement]*sql.Stmt
	touched  map[column.Key]bool // companies whose lists of reimbursements change
	refused  []Refusal
}

func newBatchWriter(tx bun.Tx) *batchWriter {
	return &batchWriter{tx: tx, prepared: map[statement]*sql.Stmt{}, touched: map[column.Key]bool{}}
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

func (w *batchWriter) writeRank(ctx context.Context, rank int, entries []numbered) error {
	k, err := w.look(ctx, rank, entries)
	if err != nil {
		return err
	}
	rows := make([]row, 0, len(entries))
	for _, e := range entries {
		if _, ok := k.companies[column.Key(e.company())]; !ok && rank != rankCompany {
			w.refuse(e.line, "companyUuid: is not a known company")
			continue
		}
		values, err := e.values(k)
		if err != nil {
			w.refuse(e.line, err.Error())
			continue
		}
		if rank == rankUser || rank == rankReimbursement {
			w.touched[column.Key(e.company())] = true
		}
		rows = append(rows, row{e.line, values})
	}
	if err := w.addUsers(ctx, k.added); err != nil {
		return err
	}
	return w.upsert(ctx, tables[rank], rows)
}

func (w *batchWriter) refuse(line int64, reason string) {
	w.refused = append(w.refused, Refusal{Line: line, Reason: reason})
}

// look finds what the entries refer to.
func (w *batchWriter) look(ctx context.Context, rank int, entries []numbered) (*known, error) {
	k := &known{companies: map[column.Key]string{}, users: map[column.Key]column.Key{}, statements: map[monthOf]column.Key{}}
	if rank == rankCompany {
		return k, nil
	}
	companies, users := references(entries)
	err := w.lookCompanies(ctx, k, companies)
	if err == nil && len(users) > 0 {
		err = w.lookUsers(ctx, k, users)
	}
	if err == nil && rank == rankStatement {
		err = w.lookStatements(ctx, k, companies)
	}
	return k, err
}

func references(entries []numbered) (companies, users []column.Key) {
	seen := map[uuid.UUID]bool{}
	once := func(list *[]column.Key, id uuid.UUID) {
		if !seen[id] {
			seen[id] = true
			*list = append(*list, column.Key(id))
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

func (w *batchWriter) lookCompanies(ctx context.Context, k *known, ids []column.Key) error {
	var rows []struct {
		UUID     column.Key `bun:"uuid"`
		Currency string     `bun:"currency"`
	}
	err := w.tx.NewSelect().Table("companies").Column("uuid", "currency").
		Where("uuid IN ?", bun.Tuple(ids)).Scan(ctx, &rows)
	for _, r := range rows {
		k.companies[r.UUID] = r.Currency
	}
	return err
}

func (w *batchWriter) lookUsers(ctx context.Context, k *known, ids []column.Key) error {
	var rows []struct {
		UUID    column.Key `bun:"uuid"`
		Company column.Key `bun:"company_uuid"`
	}
	err := w.tx.NewSelect().Table("users").Column("uuid", "company_uuid").
		Where("uuid IN ?", bun.Tuple(ids)).Scan(ctx, &rows)
	for _, r := range rows {
		k.users[r.UUID] = r.Company
	}
	return err
}

func (w *batchWriter) lookStatements(ctx context.Context, k *known, companies []column.Key) error {
	var rows []struct {
		UUID    column.Key `bun:"uuid"`
		Company column.Key `bun:"company_uuid"`
		Year    int        `bun:"year"`
		Month   int        `bun:"month"`
	}
	err := w.tx.NewSelect().Table("statements").Column("uuid", "company_uuid", "year", "month").
		Where("company_uuid IN ?", bun.Tuple(companies)).Scan(ctx, &rows)
	for _, r := range rows {
		k.statements[monthOf{r.Company, r.Year, r.Month}] = r.UUID
	}
	return err
}

func (w *batchWriter) addUsers(ctx context.Context, users []*userEntry) error {
	rows := make([]row, len(users))
	for i, u := range users {
		values, err := u.values(nil)
		if err != nil {
			return err
		}
		rows[i] = row{values: values}
	}
	return w.upsert(ctx, tables[rankUser], rows)
}

func (w *batchWriter) upsert(ctx context.Context, t table, rows []row) error {
	for len(rows) > 0 {
		n := 1
		if len(rows) >= chunkRows {
			n = chunkRows
		}
		if err := w.upsertChunk(ctx, t, rows[:n]); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

func (w *batchWriter) upsertChunk(ctx context.Context, t table, rows []row) error {
	stmt, err := w.prepare(ctx, t, len(rows))
	if err != nil {
		return err
	}
	args := make([]any, 0, len(rows)*len(t.columns))
	for _, r := range rows {
		args = append(args, r.values...)
	}
	result, err := stmt.ExecContext(ctx, args...)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == int64(len(rows)) {
		return err
	}
	return w.refuseForeign(ctx, t, rows)
}

// refuseForeign reports the rows that the guard kept from being written.
func (w *batchWriter) refuseForeign(ctx context.Context, t table, rows []row) error {
	guard := 1
	for t.columns[guard] != t.guard {
		guard++
	}
	for _, r := range rows {
		other, err := w.tx.NewSelect().Table(t.name).Where("uuid = ?", r.values[0]).
			Where("? <> ?", bun.Ident(t.guard), r.values[guard]).Exists(ctx)
		if err != nil {
			return err
		}
		if other {
			w.refuse(r.line, t.reason)
		}
	}
	return nil
}

// prepare makes the statement that upserts n rows, once a transaction.
func (w *batchWriter) prepare(ctx context.Context, t table, n int) (*sql.Stmt, error) {
	if stmt, ok := w.prepared[statement{t.name, n}]; ok {
		return stmt, nil
	}
	stmt, err := w.tx.PrepareContext(ctx, t.upsert(n, storage.IsPostgres(w.tx))) // closed with the transaction
	if err == nil {
		w.prepared[statement{t.name, n}] = stmt
	}
	return stmt, err
}

// upsert is INSERT … ON CONFLICT DO UPDATE of n rows, with the placeholders of
// the database.
func (t table) upsert(n int, postgres bool) string {
	var b strings.Builder
	b.WriteString("INSERT INTO " + t.name + " (" + strings.Join(t.columns, ", ") + ") VALUES ")
	for i := range n * len(t.columns) {
		switch {
		case i == 0:
			b.WriteString("(")
		case i%len(t.columns) == 0:
			b.WriteString("), (")
		default:
			b.WriteString(", ")
		}
		b.WriteString("?")
		if postgres {
			b.WriteString(strconv.Itoa(i + 1))
		}
	}
	b.WriteString(") ON CONFLICT (uuid) DO UPDATE SET ")
	for i, c := range t.columns[1:] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(c + " = excluded." + c)
	}
	b.WriteString(" WHERE " + t.name + "." + t.guard + " = excluded." + t.guard)
	if postgres {
		return strings.ReplaceAll(b.String(), "?", "$")
	}
	return b.String()
}

func (w *batchWriter) bumpRevisions(ctx context.Context) error {
	if len(w.touched) == 0 {
		return nil
	}
	ids := make([]column.Key, 0, len(w.touched))
	for id := range w.touched {
		ids = append(ids, id)
	}
	_, err := w.tx.NewUpdate().Table("companies").Set("reimbursements_rev = reimbursements_rev + 1").
		Where("uuid IN ?", bun.Tuple(ids)).Exec(ctx)
	return err
}
