package storage

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
)

// CardStatus is a state of the card's life:
//
//	ACTIVE <-> BLOCKED, and from each of ACTIVE, BLOCKED, EXPIRED to CANCELLED.
type CardStatus string

// The statuses of a card. Only imports make a card EXPIRED.
const (
	CardActive    CardStatus = "ACTIVE"
	CardBlocked   CardStatus = "BLOCKED"
	CardCancelled CardStatus = "CANCELLED"
	CardExpired   CardStatus = "EXPIRED"
)

var (
	cardStatuses  = []string{string(CardActive), string(CardBlocked), string(CardCancelled), string(CardExpired)}
	cardTypes     = []string{masterWorldElite, masterCorporate, masterVirtual, "VISA_PHYSICAL", "VISA_VIRTUAL"}
	periodicities = []string{"DAILY", "WEEKLY", "MONTHLY"}
)

const (
	masterWorldElite = "MASTER_WORLD_ELITE"
	masterCorporate  = "MASTER_CORPORATE"
	masterVirtual    = "MASTER_VIRTUAL"
)

// Card is one card. Threshold is nil when only the company's limit bounds it,
// Periodicity "" when the threshold never resets.
type Card struct {
	UUID, CompanyUUID, HolderUUID uuid.UUID
	LastFour, Type                string
	Status                        CardStatus
	Name                          string
	Threshold                     *decimal.Decimal
	Currency                      string
	Periodicity                   string
	IssuedAt                      time.Time
}

// CardRequest asks for a card: section 2.2 of the interface specification.
// Enum values may be in any letter case.
type CardRequest struct {
	Type, Alias               string
	UserUUID                  uuid.UUID
	Threshold                 *decimal.Decimal
	BusinessType, Periodicity string
}

// CardFilter narrows a list of cards; zero fields do not. A nil Company means
// all companies. UserUUID and UserERPID exclude each other.
type CardFilter struct {
	Company                   *uuid.UUID
	UserUUID                  *uuid.UUID
	UserERPID, Username       string
	Status, Type, Periodicity string
	Page                      Page
}

// check reports the fields whose shape is wrong, named under path.
func (r CardRequest) check(e *invalid.Error, path, currency string) {
	if r.Type == "" {
		e.Add(path+"type", "REQUIRED", "is required")
	} else {
		checkOneOf(e, path+"type", r.Type, "VIRTUAL", "PHYSICAL")
	}
	if strings.TrimSpace(r.Alias) == "" {
		e.Add(path+"alias", "REQUIRED", "is required")
	} else if !isName(r.Alias) {
		e.Add(path+"alias", "INVALID", "must be text of at most %d characters", maxText)
	}
	if r.UserUUID == uuid.Nil {
		e.Add(path+"userUuid", "REQUIRED", "is required")
	}
	if r.BusinessType != "" {
		checkOneOf(e, path+"businessType", r.BusinessType, "BUSINESS", "WORLD_ELITE")
	}
	if r.Periodicity != "" {
		checkOneOf(e, path+"periodicity", r.Periodicity, periodicities...)
	}
	if r.Threshold != nil {
		checkThreshold(e, path+"threshold", *r.Threshold, currency)
	}
}

func checkThreshold(e *invalid.Error, field string, amount decimal.Decimal, currency string) {
	if !amount.IsPositive() {
		e.Add(field, "INVALID", "must be more than 0")
		return
	}
	if _, err := toMinor(amount, currency); errors.Is(err, errTooManyDecimals) {
		e.Add(field, "INVALID", "must have at most %d decimals, as %s has", exponent(currency), currency)
	}
}

// storedThreshold is the threshold in minor units. What no company can allow
// becomes the largest there is, above every limit.
func storedThreshold(amount *decimal.Decimal, currency string) *int64 {
	if amount == nil {
		return nil
	}
	minor, err := toMinor(*amount, currency)
	if err != nil {
		minor = math.MaxInt64
	}
	return &minor
}

// row is the card that is asked for, before the rules of business.
func (r CardRequest) row(id, company uuid.UUID, currency string) cardRow {
	return cardRow{
		UUID: key(id), CompanyUUID: key(company), HolderUUID: key(r.UserUUID), Type: r.listedType(), Name: r.Alias,
		Threshold: storedThreshold(r.Threshold, currency), Periodicity: strings.ToUpper(r.Periodicity),
	}
}

// listedType is what a list of cards calls the product that was asked for.
func (r CardRequest) listedType() string {
	switch {
	case strings.EqualFold(r.Type, "VIRTUAL"):
		return masterVirtual
	case strings.EqualFold(r.BusinessType, "WORLD_ELITE"):
		return masterWorldElite
	default:
		return masterCorporate
	}
}

// lastFour stands in for the digits that a card network would assign.
func lastFour(card uuid.UUID) string {
	return fmt.Sprintf("%04d", binary.BigEndian.Uint32(card[:4])%10_000)
}

// locked is the status after a lock or unlock.
func (s CardStatus) locked(lock bool) (CardStatus, error) {
	switch {
	case s != CardActive && s != CardBlocked:
		return s, ErrCardNotActive
	case lock:
		return CardBlocked, nil
	default:
		return CardActive, nil
	}
}

func (f CardFilter) check() error {
	var e invalid.Error
	f.Page.check(&e)
	if f.UserUUID != nil && f.UserERPID != "" {
		e.Add("userErpId", "CONFLICT", "cannot be combined with userUuid")
	}
	if f.Status != "" {
		checkOneOf(&e, "status", f.Status, cardStatuses...)
	}
	if f.Type != "" {
		checkOneOf(&e, "type", f.Type, cardTypes...)
	}
	if f.Periodicity != "" {
		checkOneOf(&e, "periodicity", f.Periodicity, periodicities...)
	}
	checkText(&e, "username", f.Username)
	checkText(&e, "userErpId", f.UserERPID)
	return e.OrNil()
}

func checkText(e *invalid.Error, field, value string) {
	if !isText(value) {
		e.Add(field, "INVALID", "must be text of at most %d characters", maxText)
	}
}
