// Package money converts amounts to minor units of their currency, as stored in the database,
// and back.
package money

import (
	"errors"
	"regexp"

	"github.com/shopspring/decimal"
)

// exponents lists the currencies of ISO 4217 whose minor unit is not a
// hundredth. golang.org/x/text/currency cannot replace it: that package has the number of digits
// to display (CLDR), which is 0 for IQD, COP and RSD.
var exponents = map[string]int32{
	"BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "ISK": 0, "JPY": 0, "KMF": 0, "KRW": 0, "PYG": 0, "RWF": 0,
	"UGX": 0, "UYI": 0, "VND": 0, "VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
	"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3,
	"CLF": 4, "UYW": 4,
}

// ErrTooManyDecimals means that an amount is not a whole number of minor units.
var ErrTooManyDecimals = errors.New("has more decimals than its currency")

var errTooLarge = errors.New("is too large")

// Exponent is how many decimals the currency has.
func Exponent(currency string) int32 {
	if e, ok := exponents[currency]; ok {
		return e
	}
	return 2
}

var code = regexp.MustCompile(`^[A-Z]{3}$`)

// IsCurrency reports whether text has the form of a currency code of ISO 4217.
func IsCurrency(text string) bool { return code.MatchString(text) }

// ToMinor is the amount in minor units. The error is ErrTooManyDecimals, or says
// that the amount is too large. It checks the amount's Exponent
// before any calculation: 1e999999999 is a short text.
func ToMinor(amount decimal.Decimal, currency string) (int64, error) {
	if amount.IsZero() {
		return 0, nil
	}
	if amount.Exponent() > 18 {
		return 0, errTooLarge
	}
	if amount.Exponent() < -64 || amount.NumDigits() > 64 {
		return 0, ErrTooManyDecimals
	}
	minor := amount.Shift(Exponent(currency))
	if !minor.IsInteger() {
		return 0, ErrTooManyDecimals
	}
	if whole := minor.BigInt(); whole.IsInt64() {
		return whole.Int64(), nil
	}
	return 0, errTooLarge
}

// FromMinor is the exact amount of that many minor units.
func FromMinor(minor int64, currency string) decimal.Decimal {
	return decimal.New(minor, -Exponent(currency))
}
