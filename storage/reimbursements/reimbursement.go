package reimbursements

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/shopspring/decimal"
	"github.com/uptrace/bun"

	"spendhook/internal/calendar"
	"spendhook/internal/fold"
	"spendhook/internal/invalid"
	"spendhook/storage"
)

// Statuses are the statuses of a reimbursement. The list is read-only.
var Statuses = []string{
	"PENDING", "APPROVED", "SENT_TO_PAY", "PAYMENT_IN_PROGRESS", "PAID",
	"REJECTED", "FINANCE_REJECTED", "CANCELLED", "NOT_FOUND", "UNAUTHORIZED",
}

// Reimbursement is one request: section 2.4 of the interface specification,
// without the links. An import reads it from JSON.
type Reimbursement struct {
	UUID        uuid.UUID `json:"uuid"`
	CompanyUUID uuid.UUID `json:"companyUuid"`
	Audit       Audit     `json:"audit"`
	Requester   Reference `json:"requester"`
	AmountValue Amount    `json:"amountValue"`
	Detail
}

// Detail is the part of a Reimbursement that the database stores as JSON, without columns of its own.
type Detail struct {
	Description      string           `json:"description"`
	Labels           []Reference      `json:"labels"`
	Merchant         Merchant         `json:"merchant"`
	Groups           []Reference      `json:"groups"`
	Locations        []Reference      `json:"locations"`
	ValidationStatus ValidationStatus `json:"validationStatus"`
	Attachments      []Attachment     `json:"attachments"`
	PaymentDetail    *PaymentDetail   `json:"paymentDetail,omitzero"`
}

// Audit holds the dates of a reimbursement. RequestCreationDate and LastUpdateDate are always
// set.
type Audit struct {
	ExpenseDate         *calendar.Date `json:"expenseDate,omitzero"`
	FinalApprovalDate   *calendar.Date `json:"finalApprovalDate,omitzero"`
	LastUpdateDate      *calendar.Date `json:"lastUpdateDate,omitzero"`
	PaymentDate         *calendar.Date `json:"paymentDate,omitzero"`
	RequestCreationDate *calendar.Date `json:"requestCreationDate,omitzero"`
}

// Reference names a label, user, group or location.
type Reference struct {
	UUID uuid.UUID `json:"uuid"`
	Name string    `json:"name"`
	// Links are ignored by an import, because the API generates the links.
	Links ignored `json:"links,omitzero"`
}

// ignored accepts any JSON value and discards it.
type ignored struct{}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (ignored) UnmarshalJSONFrom(d *jsontext.Decoder) error { return d.SkipValue() }

// Attachment names a file.
type Attachment struct {
	UUID     uuid.UUID `json:"uuid"`
	FileName string    `json:"fileName"`
	// Links are ignored by an import, because the API generates the links.
	Links ignored `json:"links,omitzero"`
}

// Merchant is where the money was spent.
type Merchant struct {
	Category     string `json:"category,omitzero"`
	CategoryCode *int32 `json:"categoryCode,omitzero"`
	CountryCode  string `json:"countryCode,omitzero"`
	Description  string `json:"description,omitzero"`
	Name         string `json:"name,omitzero"`
}

// Amount is an exact amount of money.
type Amount struct {
	Currency string          `json:"currency"`
	Amount   decimal.Decimal `json:"amount"`
}

// ValidationStatus is the state of the request with its comments.
type ValidationStatus struct {
	Status  string `json:"status"`
	Comment string `json:"comment,omitzero"`
}

// PaymentDetail describes the payment of the request.
type PaymentDetail struct {
	MarkedAsPaidBy    string `json:"markedAsPaidBy,omitzero"`
	PaymentMethod     string `json:"paymentMethod,omitzero"`
	PaymentMethodNote string `json:"paymentMethodNote,omitzero"`
}

// DateRange is inclusive; a nil end is open.
type DateRange struct {
	Start, End *calendar.Date
}

// Filter restricts a list: section 4.3 of the interface specification. Filters combine with AND,
// the values of one list with OR. Zero fields restrict nothing. A nil Company means all companies.
// RequesterName is a substring; case and accents do not matter.
type Filter struct {
	Company *uuid.UUID

	RequestCreationDate, ExpenseDate, FinalApprovalDate, PaymentDate, LastUpdateDate DateRange

	CategoryCodes  []int32
	RequesterUUIDs []uuid.UUID
	Statuses       []string
	RequesterName  string
	UUIDs          []uuid.UUID
	Page           storage.Page
}

func (f *Filter) check() error {
	var e invalid.Error
	f.RequestCreationDate.check(&e, "requestCreationDate")
	f.ExpenseDate.check(&e, "expenseDate")
	f.FinalApprovalDate.check(&e, "finalApprovalDate")
	f.PaymentDate.check(&e, "paymentDate")
	f.LastUpdateDate.check(&e, "lastUpdateDate")
	e.Text("requesterName", f.RequesterName)
	return e.OrNil()
}

func (r DateRange) check(e *invalid.Error, name string) {
	if r.Start != nil && r.End != nil && *r.Start > *r.End {
		e.Add(name+"Start", "INVALID", "must not be after %sEnd", name)
	}
}

// onlyByDay reports whether only the company and the last update restrict the list.
func (f *Filter) onlyByDay() bool {
	none := DateRange{}
	return f.RequestCreationDate == none && f.ExpenseDate == none && f.FinalApprovalDate == none &&
		f.PaymentDate == none && len(f.CategoryCodes)+len(f.RequesterUUIDs)+len(f.Statuses)+len(f.UUIDs) == 0 &&
		f.RequesterName == ""
}

// apply restricts q to the rows that pass the filter. dayPrefix is a prefix of the other columns of
// days: "+" stops both databases from using an index of these columns, which does not help a
// page of a long list; "" allows the index.
func (f *Filter) apply(q *bun.SelectQuery, dayPrefix string) *bun.SelectQuery {
	q = storage.InCompany(q, f.Company)
	q = f.LastUpdateDate.negated().apply(q, "recency")
	q = f.RequestCreationDate.apply(q, dayPrefix+"creation_day")
	q = f.ExpenseDate.apply(q, dayPrefix+"expense_day")
	q = f.FinalApprovalDate.apply(q, dayPrefix+"approval_day")
	q = f.PaymentDate.apply(q, dayPrefix+"payment_day")
	q = whereIn(q, "category", f.CategoryCodes)
	q = whereIn(q, "status", f.Statuses)
	q = whereIn(q, "requester_uuid", storage.Keys(f.RequesterUUIDs))
	q = whereIn(q, "uuid", storage.Keys(f.UUIDs))
	if f.RequesterName != "" {
		named := storage.InCompany(q.NewSelect().Table("users").Column("uuid"), f.Company).
			Where("name_folded LIKE ? ESCAPE '!'", "%"+storage.LikeText(fold.Text(f.RequesterName))+"%")
		q = q.Where("requester_uuid IN (?)", named)
	}
	return q
}

func (r DateRange) apply(q *bun.SelectQuery, column string) *bun.SelectQuery {
	if r.Start != nil {
		q = q.Where("? >= ?", bun.Safe(column), int64(*r.Start))
	}
	if r.End != nil {
		q = q.Where("? <= ?", bun.Safe(column), int64(*r.End))
	}
	return q
}

// negated converts the range to the values of the column recency, which are negative days.
func (r DateRange) negated() DateRange {
	return DateRange{Start: negate(r.End), End: negate(r.Start)}
}

func negate(d *calendar.Date) *calendar.Date {
	if d == nil {
		return nil
	}
	return new(-*d)
}

func whereIn[T any](q *bun.SelectQuery, column string, values []T) *bun.SelectQuery {
	if len(values) == 0 {
		return q
	}
	return q.Where(fmt.Sprintf("%s IN ?", column), bun.Tuple(values))
}
