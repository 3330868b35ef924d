package importer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"spendhook/internal/calendar"
	"spendhook/internal/fold"
	"spendhook/internal/invalid"
	"spendhook/internal/money"
	"spendhook/storage"
	"spendhook/storage/billing"
	"spendhook/storage/cards"
	"spendhook/storage/locations"
)

// The order in which the objects of a batch are written: referenced objects come first.
const (
	rankCompany = iota
	rankUser
	rankLocation
	rankCard
	rankStatement
	rankReimbursement
	ranks
)

// kind is a kind of objects, and the columns of its table that an import writes. The first column
// is the primary key. If an existing row has another value in the second column, the line is refused
// with reason.
type kind struct {
	name           string
	empty          func() entry
	table, columns string
	reason         string
}

const ofAnotherCompany = "uuid: belongs to another company"

var kinds = [ranks]kind{
	rankCompany: {
		"company", func() entry { return &companyEntry{} },
		"companies", "uuid, currency, name, credit_limit, region", "currency: cannot be changed",
	},
	rankUser: {
		"user", func() entry { return &userEntry{} },
		"users", "uuid, company_uuid, username, name, name_folded, erp_id, active", ofAnotherCompany,
	},
	rankLocation: {
		"location", func() entry { return &locationEntry{} },
		"locations", "uuid, company_uuid, name, code, status, created_at", ofAnotherCompany,
	},
	rankCard: {
		"card", func() entry { return &cardEntry{} },
		"cards", "uuid, company_uuid, holder_uuid, last_four, type, status, name, threshold, periodicity, issued_at", ofAnotherCompany,
	},
	rankStatement: {
		"statement", func() entry { return &statementEntry{} },
		"statements", "uuid, company_uuid, year, month, status, total, currency, closing_day", ofAnotherCompany,
	},
	rankReimbursement: {
		"reimbursement", func() entry { return &reimbursementEntry{} },
		"reimbursements", "uuid, company_uuid, recency, status, category, requester_uuid, creation_day, expense_day, " +
			"approval_day, payment_day, amount, currency, detail", ofAnotherCompany,
	},
}

// entry is the object of one line.
type entry interface {
	id() uuid.UUID
	// company returns the object's company; of a company, its own uuid.
	company() uuid.UUID
	// check reports invalid fields, without the database, and sets derived values.
	check(e *invalid.Error)
	// values returns the values of the table's columns, or the reason to refuse the line.
	values(k *known) ([]any, error)
}

// kinded reads the kind of a line.
type kinded struct {
	Kind string `json:"kind"`
}

// owned is an object of a company.
type owned struct {
	Kind        string    `json:"kind"`
	UUID        uuid.UUID `json:"uuid"`
	CompanyUUID uuid.UUID `json:"companyUuid"`
}

func (o *owned) id() uuid.UUID      { return o.UUID }
func (o *owned) company() uuid.UUID { return o.CompanyUUID }

// parseEntry reads a line, and checks it without the database.
func parseEntry(line []byte) (e entry, rank int, err error) {
	var k kinded
	if err := json.Unmarshal(line, &k); err != nil {
		return nil, 0, jsonReason(err)
	}
	rank = slices.IndexFunc(kinds[:], func(known kind) bool { return known.name == k.Kind })
	if rank < 0 {
		return nil, 0, errors.New("kind: must be company, user, card, location, reimbursement or statement")
	}
	e = kinds[rank].empty()
	if err := json.Unmarshal(line, e, json.RejectUnknownMembers(true)); err != nil {
		return nil, 0, jsonReason(err)
	}
	var problems invalid.Error
	if e.id() == uuid.Nil {
		problems.Add("uuid", "REQUIRED", "is required")
	}
	if e.company() == uuid.Nil {
		problems.Add("companyUuid", "REQUIRED", "is required")
	}
	e.check(&problems)
	return e, rank, problems.OrNil()
}

// jsonReason returns the reason of a JSON error without the names of Go types.
func jsonReason(err error) error {
	var semantic *json.SemanticError
	if !errors.As(err, &semantic) {
		return fmt.Errorf("not a JSON object: %w", err)
	}
	if errors.Is(err, json.ErrUnknownName) {
		return fmt.Errorf("%s: is not a known field", semantic.JSONPointer)
	}
	if semantic.JSONPointer == "" {
		return errors.New("not a JSON object")
	}
	return fmt.Errorf("%s: has a value of the wrong type or form", semantic.JSONPointer)
}

type companyEntry struct {
	kinded

	UUID        uuid.UUID        `json:"uuid"`
	Name        string           `json:"name"`
	Currency    string           `json:"currency"`
	CreditLimit *decimal.Decimal `json:"creditLimit"`
	Region      string           `json:"region"`
}

func (c *companyEntry) id() uuid.UUID      { return c.UUID }
func (c *companyEntry) company() uuid.UUID { return c.UUID }

func (c *companyEntry) check(e *invalid.Error) {
	checkName(e, c.Name)
	e.Text("region", c.Region)
	checkMoney(e, "currency", c.Currency, "creditLimit", c.CreditLimit)
	if c.CreditLimit != nil && c.CreditLimit.IsNegative() {
		e.Add("creditLimit", "INVALID", "must be 0 or more")
	}
}

func (c *companyEntry) values(*known) ([]any, error) {
	limit, err := money.ToMinor(*c.CreditLimit, c.Currency)
	return []any{c.UUID[:], c.Currency, c.Name, limit, c.Region}, err
}

type userEntry struct {
	owned

	Username string `json:"username"`
	Name     string `json:"name"`
	ERPID    string `json:"erpId"`
	Active   *bool  `json:"active"`
}

func (u *userEntry) check(e *invalid.Error) {
	checkName(e, u.Name)
	e.Text("username", u.Username)
	e.Text("erpId", u.ERPID)
}

func (u *userEntry) values(*known) ([]any, error) {
	active := u.Active == nil || *u.Active
	return []any{u.UUID[:], u.CompanyUUID[:], u.Username, u.Name, fold.Text(u.Name), u.ERPID, active}, nil
}

type locationEntry struct {
	owned

	Name      string    `json:"name"`
	Code      string    `json:"code"`
	Status    string    `json:"status"`
	CreatedAt time.Time `json:"createdAt"`
}

func (l *locationEntry) check(e *invalid.Error) {
	checkName(e, l.Name)
	e.Text("code", l.Code)
	checkExactly(e, "status", l.Status, locations.Statuses...)
}

func (l *locationEntry) values(k *known) ([]any, error) {
	if l.CreatedAt.IsZero() {
		l.CreatedAt = k.now
	}
	return []any{l.UUID[:], l.CompanyUUID[:], l.Name, l.Code, l.Status, l.CreatedAt.UnixMilli()}, nil
}

type cardEntry struct {
	owned

	HolderUUID  uuid.UUID        `json:"holderUuid"`
	LastFour    string           `json:"lastFour"`
	Type        string           `json:"type"`
	Status      string           `json:"status"`
	Name        string           `json:"name"`
	Threshold   *decimal.Decimal `json:"threshold"`
	Periodicity string           `json:"periodicity"`
	IssuedAt    time.Time        `json:"issuedAt"`
}

func (c *cardEntry) check(e *invalid.Error) {
	checkName(e, c.Name)
	checkExactly(e, "type", c.Type, cards.Types...)
	checkExactly(e, "status", c.Status, cards.Statuses...)
	if c.Periodicity != "" {
		checkExactly(e, "periodicity", c.Periodicity, cards.Periodicities...)
	}
	if len(c.LastFour) != 4 || strings.Trim(c.LastFour, "0123456789") != "" {
		e.Add("lastFour", "INVALID", "must be four digits")
	}
	if c.IssuedAt.IsZero() {
		e.Add("issuedAt", "REQUIRED", "is required")
	}
}

func (c *cardEntry) values(k *known) ([]any, error) {
	if k.users[storage.Key(c.HolderUUID)] != storage.Key(c.CompanyUUID) {
		return nil, errors.New("holderUuid: is not a user of the company")
	}
	var threshold any
	if c.Threshold != nil {
		minor, err := money.ToMinor(*c.Threshold, k.companies[storage.Key(c.CompanyUUID)])
		if err != nil || minor <= 0 {
			return nil, fmt.Errorf("threshold: must be more than 0 and exact in the company's currency")
		}
		threshold = minor
	}
	return []any{
		c.UUID[:], c.CompanyUUID[:], c.HolderUUID[:], c.LastFour, c.Type, c.Status, c.Name,
		threshold, c.Periodicity, c.IssuedAt.UnixMilli(),
	}, nil
}

type statementEntry struct {
	kinded

	UUID        uuid.UUID        `json:"statementUuid"`
	CompanyUUID uuid.UUID        `json:"companyUuid"`
	Month       int              `json:"month"`
	Year        int              `json:"year"`
	Status      string           `json:"status"`
	TotalAmount *decimal.Decimal `json:"totalAmount"`
	Currency    string           `json:"currency"`
	ClosingDate *calendar.Date   `json:"closingDate"`
}

func (s *statementEntry) id() uuid.UUID      { return s.UUID }
func (s *statementEntry) company() uuid.UUID { return s.CompanyUUID }

func (s *statementEntry) check(e *invalid.Error) {
	billing.CheckMonth(e, s.Month, s.Year)
	checkExactly(e, "status", s.Status, billing.Statuses...)
	checkMoney(e, "currency", s.Currency, "totalAmount", s.TotalAmount)
	if s.ClosingDate == nil {
		e.Add("closingDate", "REQUIRED", "is required")
	}
}

func (s *statementEntry) values(k *known) ([]any, error) {
	month := monthOf{storage.Key(s.CompanyUUID), s.Year, s.Month}
	if other, ok := k.statements[month]; ok && other != storage.Key(s.UUID) {
		return nil, errors.New("month: the company has another statement for this month")
	}
	k.statements[month] = storage.Key(s.UUID)
	total, err := money.ToMinor(*s.TotalAmount, s.Currency)
	return []any{s.UUID[:], s.CompanyUUID[:], s.Year, s.Month, s.Status, total, s.Currency, int64(*s.ClosingDate)}, err
}

func checkName(e *invalid.Error, value string) {
	if !invalid.IsName(value) {
		e.Add("name", "INVALID", "must be text of 1 to %d characters", invalid.MaxText)
	}
}

// checkExactly is a case-sensitive invalid.Error.OneOf.
func checkExactly(e *invalid.Error, field, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		e.OneOf(field, "", allowed...)
	}
}

func checkMoney(e *invalid.Error, currencyField, currency, field string, amount *decimal.Decimal) {
	if !money.IsCurrency(currency) {
		e.Add(currencyField, "INVALID", "must be a currency code of three capital letters")
	}
	if amount == nil {
		e.Add(field, "REQUIRED", "is required")
		return
	}
	if _, err := money.ToMinor(*amount, currency); err != nil {
		e.Add(field, "INVALID", "%s", err.Error())
	}
}
