package importer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"spendhook/internal/calendar"
	"spendhook/internal/fold"
	"spendhook/internal/invalid"
	"spendhook/internal/money"
	"spendhook/storage/billing"
	"spendhook/storage/cards"
	"spendhook/storage/column"
	"spendhook/storage/locations"
)

// The order in which the objects of a batch are written: what is referred to
// comes first.
const (
	rankCompany = iota
	rankUser
	rankLocation
	rankCard
	rankStatement
	rankReimbursement
	ranks
)

// entry is the object of one line.
type entry interface {
	rank() int
	id() uuid.UUID
	// company is the object's company, also for a company.
	company() uuid.UUID
	// check reports what is wrong with the object by itself.
	check(e *invalid.Error)
	// settle adds what is derived from a sound object; now is for what has no
	// time of its own.
	settle(now time.Time) error
	// values are those of the columns of its table, or why there are none.
	values(k *known) ([]any, error)
}

// newEntry makes the empty object of a kind, or nil.
func newEntry(kind string) entry {
	switch kind {
	case "company":
		return &companyEntry{}
	case "user":
		return &userEntry{}
	case "location":
		return &locationEntry{}
	case "card":
		return &cardEntry{}
	case "statement":
		return &statementEntry{}
	case "reimbursement":
		return &reimbursementEntry{}
	default:
		return nil
	}
}

// kinded is the member that tells what a line holds.
type kinded struct {
	Kind string `json:"kind"`
}

func (kinded) settle(time.Time) error { return nil }

// parseEntry reads and checks a line by itself.
func parseEntry(line []byte, now time.Time) (entry, error) {
	var k kinded
	if err := json.Unmarshal(line, &k); err != nil {
		return nil, jsonReason(err)
	}
	e := newEntry(k.Kind)
	if e == nil {
		return nil, errors.New("kind: must be company, user, card, location, reimbursement or statement")
	}
	if err := json.Unmarshal(line, e, json.RejectUnknownMembers(true)); err != nil {
		return nil, jsonReason(err)
	}
	var problems invalid.Error
	if e.id() == uuid.Nil {
		problems.Add("uuid", "REQUIRED", "is required")
	}
	if e.company() == uuid.Nil {
		problems.Add("companyUuid", "REQUIRED", "is required")
	}
	if e.check(&problems); problems.OrNil() != nil {
		return nil, &problems
	}
	return e, e.settle(now)
}

// jsonReason leaves the names of Go types out of what is said about a line.
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

func (c *companyEntry) rank() int          { return rankCompany }
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
	return []any{c.UUID[:], c.Name, c.Currency, limit, c.Region}, err
}

type userEntry struct {
	kinded

	UUID        uuid.UUID `json:"uuid"`
	CompanyUUID uuid.UUID `json:"companyUuid"`
	Username    string    `json:"username"`
	Name        string    `json:"name"`
	ERPID       string    `json:"erpId"`
	Active      *bool     `json:"active"`
}

func (u *userEntry) rank() int          { return rankUser }
func (u *userEntry) id() uuid.UUID      { return u.UUID }
func (u *userEntry) company() uuid.UUID { return u.CompanyUUID }

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
	kinded

	UUID        uuid.UUID `json:"uuid"`
	CompanyUUID uuid.UUID `json:"companyUuid"`
	Name        string    `json:"name"`
	Code        string    `json:"code"`
	Status      string    `json:"status"`
	CreatedAt   time.Time `json:"createdAt"`
}

func (l *locationEntry) rank() int          { return rankLocation }
func (l *locationEntry) id() uuid.UUID      { return l.UUID }
func (l *locationEntry) company() uuid.UUID { return l.CompanyUUID }

func (l *locationEntry) check(e *invalid.Error) {
	checkName(e, l.Name)
	e.Text("code", l.Code)
	checkExactly(e, "status", l.Status, locations.Statuses...)
}

func (l *locationEntry) settle(now time.Time) error {
	if l.CreatedAt.IsZero() {
		l.CreatedAt = now
	}
	return nil
}

func (l *locationEntry) values(*known) ([]any, error) {
	return []any{l.UUID[:], l.CompanyUUID[:], l.Name, l.Code, l.Status, l.CreatedAt.UnixMilli()}, nil
}

type cardEntry struct {
	kinded

	UUID        uuid.UUID        `json:"uuid"`
	CompanyUUID uuid.UUID        `json:"companyUuid"`
	HolderUUID  uuid.UUID        `json:"holderUuid"`
	LastFour    string           `json:"lastFour"`
	Type        string           `json:"type"`
	Status      string           `json:"status"`
	Name        string           `json:"name"`
	Threshold   *decimal.Decimal `json:"threshold"`
	Periodicity string           `json:"periodicity"`
	IssuedAt    time.Time        `json:"issuedAt"`
}

func (c *cardEntry) rank() int          { return rankCard }
func (c *cardEntry) id() uuid.UUID      { return c.UUID }
func (c *cardEntry) company() uuid.UUID { return c.CompanyUUID }

func (c *cardEntry) check(e *invalid.Error) {
	checkName(e, c.Name)
	checkExactly(e, "type", c.Type, cards.Types...)
	checkExactly(e, "status", c.Status, cards.Statuses...)
	if c.Periodicity != "" {
		checkExactly(e, "periodicity", c.Periodicity, cards.Periodicities...)
	}
	if !isDigits(c.LastFour, 4) {
		e.Add("lastFour", "INVALID", "must be four digits")
	}
	if c.IssuedAt.IsZero() {
		e.Add("issuedAt", "REQUIRED", "is required")
	}
}

func (c *cardEntry) values(k *known) ([]any, error) {
	if k.users[column.Key(c.HolderUUID)] != column.Key(c.CompanyUUID) {
		return nil, errors.New("holderUuid: is not a user of the company")
	}
	var threshold any
	if c.Threshold != nil {
		minor, err := money.ToMinor(*c.Threshold, k.companies[column.Key(c.CompanyUUID)])
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

func (s *statementEntry) rank() int          { return rankStatement }
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
	month := monthOf{column.Key(s.CompanyUUID), s.Year, s.Month}
	if other, ok := k.statements[month]; ok && other != column.Key(s.UUID) {
		return nil, errors.New("month: the company has another statement for it")
	}
	k.statements[month] = column.Key(s.UUID)
	total, err := money.ToMinor(*s.TotalAmount, s.Currency)
	return []any{s.UUID[:], s.CompanyUUID[:], s.Year, s.Month, s.Status, total, s.Currency, int64(*s.ClosingDate)}, err
}

func checkName(e *invalid.Error, value string) {
	if !invalid.IsName(value) {
		e.Add("name", "INVALID", "must be text of 1 to %d characters", invalid.MaxText)
	}
}

// checkExactly is checkOneOf for data, where letter case matters.
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

func isDigits(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}
