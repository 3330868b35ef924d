// Package cards creates, reads, lists and changes cards in the database: one card or, as a job, up
// to 500. It has the validation of requests for cards and the allowed changes of a card.
package cards

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"spendhook/internal/invalid"
	"spendhook/internal/money"
	"spendhook/storage"
)

var (
	// ErrUserNotFound means that a cardholder is not an active user of the company.
	ErrUserNotFound = errors.New("the user is not an active user of the company")
	// ErrNotActive means that the card's status forbids the change.
	ErrNotActive = errors.New("the card is not active")
	// ErrThresholdExceedsLimit means that a threshold is above the company's
	// credit limit.
	ErrThresholdExceedsLimit = errors.New("the threshold exceeds the company's credit limit")
)

// Status is the status of a card. The allowed changes are
//
//	ACTIVE <-> BLOCKED, and from each of ACTIVE, BLOCKED, EXPIRED to CANCELLED.
type Status string

// The statuses of a card. Only imports make a card EXPIRED.
const (
	Active    Status = "ACTIVE"
	Blocked   Status = "BLOCKED"
	Cancelled Status = "CANCELLED"
	Expired   Status = "EXPIRED"
)

// The values of a card's fields. These lists are read-only.
var (
	Statuses      = []string{string(Active), string(Blocked), string(Cancelled), string(Expired)}
	Types         = []string{masterWorldElite, masterCorporate, masterVirtual, "VISA_PHYSICAL", "VISA_VIRTUAL"}
	Periodicities = []string{"DAILY", "WEEKLY", "MONTHLY"}
)

const (
	masterWorldElite = "MASTER_WORLD_ELITE"
	masterCorporate  = "MASTER_CORPORATE"
	masterVirtual    = "MASTER_VIRTUAL"
)

// Card is one card. A nil Threshold means that only the credit limit of the company bounds the card.
// Periodicity is "" when the threshold never resets.
type Card struct {
	UUID, CompanyUUID, HolderUUID uuid.UUID
	LastFour, Type                string
	Status                        Status
	Name                          string
	Threshold                     *decimal.Decimal
	Currency                      string
	Periodicity                   string
	IssuedAt                      time.Time
}

// Request asks for a card: section 2.2 of the interface specification.
// Enum values may be in any letter case.
type Request struct {
	Type, Alias               string
	UserUUID                  uuid.UUID
	Threshold                 *decimal.Decimal
	BusinessType, Periodicity string
}

// Filter restricts a list of cards; zero fields restrict nothing. A nil Company means all
// companies. UserUUID and UserERPID exclude each other.
type Filter struct {
	Company                   *uuid.UUID
	UserUUID                  *uuid.UUID
	UserERPID, Username       string
	Status, Type, Periodicity string
	Page                      storage.Page
}

// check adds a problem for each malformed field. path is the prefix of the names of fields.
func (r Request) check(e *invalid.Error, path, currency string) {
	if r.Type == "" {
		e.Add(path+"type", "REQUIRED", "is required")
	} else {
		e.OneOf(path+"type", r.Type, "VIRTUAL", "PHYSICAL")
	}
	if strings.TrimSpace(r.Alias) == "" {
		e.Add(path+"alias", "REQUIRED", "is required")
	} else if !invalid.IsName(r.Alias) {
		e.Add(path+"alias", "INVALID", "must be text of at most %d characters", invalid.MaxText)
	}
	if r.UserUUID == uuid.Nil {
		e.Add(path+"userUuid", "REQUIRED", "is required")
	}
	if r.BusinessType != "" {
		e.OneOf(path+"businessType", r.BusinessType, "BUSINESS", "WORLD_ELITE")
	}
	if r.Periodicity != "" {
		e.OneOf(path+"periodicity", r.Periodicity, Periodicities...)
	}
	if r.Threshold != nil {
		checkThreshold(e, path+"threshold", *r.Threshold, currency)
	}
}

// checkThreshold reports a threshold that is not valid in the currency, and returns the threshold in
// minor units. A threshold without exact minor units becomes the largest number, which exceeds
// every credit limit. So does any threshold of an unknown company: its currency is unknown, and an
// import may add the company before the card is created.
func checkThreshold(e *invalid.Error, field string, amount decimal.Decimal, currency string) int64 {
	if !amount.IsPositive() {
		e.Add(field, "INVALID", "must be more than 0")
		return 0
	}
	if currency == "" {
		return math.MaxInt64
	}
	minor, err := money.ToMinor(amount, currency)
	if errors.Is(err, money.ErrTooManyDecimals) {
		e.Add(field, "INVALID", "must have at most %d decimals, as %s has", money.Exponent(currency), currency)
	}
	if err != nil {
		return math.MaxInt64
	}
	return minor
}

// order returns the request in the form of the database. check must have found the request valid.
func (r Request) order(currency string) order {
	o := order{Type: r.listedType(), Name: r.Alias, HolderUUID: storage.Key(r.UserUUID), Periodicity: strings.ToUpper(r.Periodicity)}
	if r.Threshold != nil {
		o.Threshold = new(checkThreshold(&invalid.Error{}, "", *r.Threshold, currency))
	}
	return o
}

// listedType returns the type of the card in lists.
func (r Request) listedType() string {
	switch {
	case strings.EqualFold(r.Type, "VIRTUAL"):
		return masterVirtual
	case strings.EqualFold(r.BusinessType, "WORLD_ELITE"):
		return masterWorldElite
	default:
		return masterCorporate
	}
}

// lastFour derives four digits from the uuid, in place of those that a card network would assign.
func lastFour(card uuid.UUID) string {
	return fmt.Sprintf("%04d", binary.BigEndian.Uint32(card[:4])%10_000)
}

// locked returns the status after a lock or unlock, or ErrNotActive.
func (s Status) locked(lock bool) (Status, error) {
	switch {
	case s != Active && s != Blocked:
		return s, ErrNotActive
	case lock:
		return Blocked, nil
	default:
		return Active, nil
	}
}

// check returns an *invalid.Error for an invalid filter.
func (f Filter) check() error {
	var e invalid.Error
	if f.UserUUID != nil && f.UserERPID != "" {
		e.Add("userErpId", "CONFLICT", "cannot be combined with userUuid")
	}
	e.Text("username", f.Username)
	e.Text("userErpId", f.UserERPID)
	return e.OrNil()
}
