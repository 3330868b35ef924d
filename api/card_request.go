package api

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"spendhook/api/gen"
	"spendhook/internal/invalid"
	"spendhook/storage/cards"
)

// longestNumber bounds the characters of an amount.
const longestNumber = 64

// cardRequest converts the input of both create operations. Package cards checks required
// fields and the values of enums.
func cardRequest(in gen.CardCreate) (cards.Request, error) {
	var e invalid.Error
	request := cards.Request{
		Type: in.Type, Alias: in.Alias,
		Threshold:    number(&e, "threshold", in.Threshold),
		BusinessType: notEmpty(&e, "businessType", in.BusinessType),
	}
	if user := oneSpelling(&e, "userUuid", "userUUID", in.UserUUID, in.UserUUIDUpper, sameUUID); user != nil {
		request.UserUUID = *user
	}
	periodicity := oneSpelling(&e, "periodicity", "periodicityType", in.Periodicity, in.PeriodicityType, strings.EqualFold)
	request.Periodicity = notEmpty(&e, "periodicity", periodicity)
	return request, e.OrNil()
}

// oneSpelling returns the value of a field that has two names.
func oneSpelling[T any](e *invalid.Error, name, other string, value, otherValue *T, same func(a, b T) bool) *T {
	if value == nil {
		return otherValue
	}
	if otherValue != nil && !same(*value, *otherValue) {
		e.Add(other, "INVALID", "is not the same as %s", name)
	}
	return value
}

func sameUUID(a, b uuid.UUID) bool { return a == b }

// notEmpty returns an optional text. An empty text is a problem, an absent one is not.
func notEmpty(e *invalid.Error, field string, value *string) string {
	if value != nil && *value == "" {
		e.Add(field, "INVALID", "must not be empty")
	}
	return text(value)
}

// number reads an exact number; nil when there is none.
func number(e *invalid.Error, field string, value jsontext.Value) *decimal.Decimal {
	if len(value) == 0 || value.Kind() == jsontext.KindNull {
		return nil
	}
	if len(value) <= longestNumber { // other JSON values do not parse as a number
		if exact, err := decimal.NewFromString(string(value)); err == nil {
			return &exact
		}
	}
	e.Add(field, "INVALID", "must be a number of at most %d characters", longestNumber)
	return nil
}

func requiredNumber(field string, value jsontext.Value) (decimal.Decimal, error) {
	var e invalid.Error
	exact := number(&e, field, value)
	switch {
	case e.OrNil() != nil:
		return decimal.Decimal{}, &e
	case exact == nil:
		return decimal.Decimal{}, fieldProblem(field, "REQUIRED", "is required")
	default:
		return *exact, nil
	}
}
