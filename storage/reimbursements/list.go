// Package reimbursements reads requests for reimbursement. Lists have filters, and every
// page of a list costs about the same.
package reimbursements

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/uptrace/bun"

	"spendhook/internal/calendar"
	"spendhook/internal/money"
	"spendhook/storage"
)

// maxSorted is the number of rows up to which the filter's index and a sort are faster than the
// index of the list's order.
const maxSorted = 2000

type reimbursementRow struct {
	bun.BaseModel `bun:"table:reimbursements,alias:r"`

	UUID          uuid.UUID      `bun:"uuid,pk"`
	CompanyUUID   uuid.UUID      `bun:"company_uuid"`
	Recency       calendar.Date  `bun:"recency"`
	Status        string         `bun:"status"`
	Category      *int32         `bun:"category"`
	RequesterUUID uuid.UUID      `bun:"requester_uuid"`
	CreationDay   calendar.Date  `bun:"creation_day"`
	ExpenseDay    *calendar.Date `bun:"expense_day"`
	ApprovalDay   *calendar.Date `bun:"approval_day"`
	PaymentDay    *calendar.Date `bun:"payment_day"`
	Amount        int64          `bun:"amount"`
	Currency      string         `bun:"currency"`
	Detail        string         `bun:"detail"`
	RequesterName string         `bun:"requester_name,scanonly"`
}

// List reads one page, the latest updated first and then by uuid, and the number of all
// reimbursements that pass the filter. The error may be an *invalid.Error.
func (s *Store) List(ctx context.Context, f Filter) (list []Reimbursement, total int64, err error) {
	if err := f.check(); err != nil {
		return nil, 0, err
	}
	var rows []reimbursementRow
	err = s.db.Snapshot(ctx, "list reimbursements", func(ctx context.Context, db bun.IDB) error {
		rev, err := revision(ctx, db, f.Company)
		if err != nil {
			return err
		}
		days, err := s.count(ctx, rev, f.apply(db.NewSelect().Table("reimbursements"), ""), f.dayColumn())
		total = days.total()
		if err != nil || total <= f.Page.Offset() {
			return err
		}
		return s.page(ctx, db, &f, days, &rows)
	})
	if err != nil {
		return nil, 0, err
	}
	list = make([]Reimbursement, len(rows))
	for i := range rows {
		if list[i], err = rows[i].reimbursement(); err != nil {
			return nil, 0, fmt.Errorf("list reimbursements: %w", err)
		}
	}
	return list, total, nil
}

// revision returns a number that every change of the company's reimbursements increases. A nil
// company means all companies.
func revision(ctx context.Context, db bun.IDB, company *uuid.UUID) (rev int64, err error) {
	q := db.NewSelect().Table("companies").ColumnExpr("CAST(COALESCE(SUM(reimbursements_rev), 0) AS BIGINT)")
	if company != nil {
		q = q.Where("uuid = ?", storage.Key(*company))
	}
	err = q.Scan(ctx, &rev)
	return rev, err
}

// dayColumn returns the column of the order. With a "+", the database cannot use the index of
// the order and uses the index of the filter.
func (f *Filter) dayColumn() string {
	if f.onlyByDay() {
		return "recency"
	}
	return "+recency"
}

// page reads the rows of the page. It seeks to the day on which the page begins. Within a day of
// many rows it seeks to the first byte of the uuid. It skips only the rows between that position and
// the page.
func (s *Store) page(ctx context.Context, db bun.IDB, f *Filter, days histogram, rows *[]reimbursementRow) error {
	offset, size := f.Page.Offset(), int64(f.Page.Limit())
	first, skip := days.find(offset)
	last, _ := days.find(min(offset+size, days.total()) - 1)
	from := []byte{}
	if skip > maxSkipped {
		day := f.apply(db.NewSelect().Table("reimbursements"), "").Where("recency = ?", first.at)
		uuids, err := s.count(ctx, days.rev, day, "substr(uuid, 1, 1)")
		if err != nil {
			return err
		}
		var at bucket
		at, skip = uuids.find(skip)
		from = []byte{byte(at.at)} //nolint:gosec // the histogram counts single bytes
	}
	order, dayPrefix := "recency", ""
	switch {
	case f.onlyByDay():
	case days.total() <= maxSorted:
		order = "+recency"
	default:
		dayPrefix = "+"
	}
	ids := f.apply(db.NewSelect().Table("reimbursements").Column("uuid"), dayPrefix).
		Where("(?, uuid) >= (?, ?)", bun.Safe(order), first.at, from).Where("? <= ?", bun.Safe(order), last.at).
		OrderExpr("recency, uuid").Limit(size).Offset(skip)
	return db.NewSelect().Model(rows).ColumnExpr("r.*, u.name AS requester_name").
		Join("JOIN users AS u ON u.uuid = r.requester_uuid").
		Where("r.uuid IN (?)", ids).OrderExpr("r.recency, r.uuid").Scan(ctx)
}

func (r *reimbursementRow) reimbursement() (Reimbursement, error) {
	var out Reimbursement
	if err := json.Unmarshal([]byte(r.Detail), &out.Detail); err != nil {
		return out, err
	}
	out.UUID, out.CompanyUUID = r.UUID, r.CompanyUUID
	out.Audit = Audit{
		RequestCreationDate: new(r.CreationDay), ExpenseDate: r.ExpenseDay, FinalApprovalDate: r.ApprovalDay,
		PaymentDate: r.PaymentDay, LastUpdateDate: new(-r.Recency),
	}
	out.Merchant.CategoryCode = r.Category
	out.Requester = Reference{UUID: r.RequesterUUID, Name: r.RequesterName}
	out.AmountValue = Amount{Currency: r.Currency, Amount: money.FromMinor(r.Amount, r.Currency)}
	out.ValidationStatus.Status = r.Status
	return out, nil
}

// Store reads the reimbursements of a database. It is safe for concurrent use. Every
// method returns storage.ErrUnavailable, wrapped, when the database is
// unreachable or too slow.
type Store struct {
	db         *storage.DB
	histograms *lru.Cache[string, histogram]
}

// New returns the Store of a database.
func New(db *storage.DB) *Store {
	histograms, _ := lru.New[string, histogram](maxHistograms) // fails only for a size below 1
	return &Store{db: db, histograms: histograms}
}
