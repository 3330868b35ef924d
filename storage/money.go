package storage

import (
	"errors"

	"github.com/shopspring/decimal"
)

// exponents lists the currencies of ISO 4217 whose minor unit is not a
// hundredth. (golang.org/x/text/currency follows CLDR, which tells how many
// digits to show, not how many there are: it has none for IQD, COP or RSD.)
var exponents = map[string]int32{
	"BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "ISK": 0, "JPY": 0, "KMF": 0, "KRW": 0, "PYG": 0, "RWF": 0,
	"UGX": 0, "UYI": 0, "VND": 0, "VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
	"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3,
	"CLF": 4, "UYW": 4,
}

var (
	errTooManyDecimals = errors.New("has more decimals than its currency")
	errTooLarge        = errors.New("is too large")
)

// exponent is how many decimals the currency has.
func exponent(currency string) int32 {
	if e, ok := exponents[currency]; ok {
		return e
	}
	return 2
}

func isCurrency(code string) bool {
	if len(code) != 3 {
		return false
	}
	for _, c := range []byte(code) {
		if c < 'A' || c > 'Z' {
			return false
		}
	}
	return true
}

// toMinor is the amount in minor units. It looks at the amount's exponent
// before it computes with it: 1e999999999 is a short text.
func toMinor(amount decimal.Decimal, currency string) (int64, error) {
	if amount.IsZero() {
		return 0, nil
	}
	if amount.Exponent() > 18 {
		return 0, errTooLarge
	}
	if amount.Exponent() < -64 || amount.NumDigits() > 64 {
		return 0, errTooManyDecimals
	}
	minor := amount.Shift(exponent(currency))
	if !minor.IsInteger() {
		return 0, errTooManyDecimals
	}
	if whole := minor.BigInt(); whole.IsInt64() {
		return whole.Int64(), nil
	}
	return 0, errTooLarge
}

// fromMinor is the exact amount of so many minor units.
func fromMinor(minor int64, currency string) decimal.Decimal {
	return decimal.New(minor, -exponent(currency))
}

func fromMinorPtr(minor *int64, currency string) *decimal.Decimal {
	if minor == nil {
		return nil
	}
	d := fromMinor(*minor, currency)
	return &d
}
