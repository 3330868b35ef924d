package tokens

import "time"

// Code says why a token request was refused: of RFC 6749 section 5.2 where that
// has one.
type Code string

// The codes. Only the last one is not caused by the request.
const (
	InvalidRequest       Code = "invalid_request"
	InvalidClient        Code = "invalid_client"
	InvalidScope         Code = "invalid_scope"
	UnsupportedGrantType Code = "unsupported_grant_type"
	TooManyTokens        Code = "too_many_tokens"
	Unavailable          Code = "unavailable"
)

func refusalCodes() []string {
	return []string{
		string(InvalidRequest), string(InvalidClient), string(InvalidScope), string(UnsupportedGrantType),
		string(TooManyTokens), string(Unavailable),
	}
}

// Error is why a token request gets no token.
type Error struct {
	Code        Code
	Description string // repeats nothing of the request
	// RetryAfter is the time after which a retry may succeed; 0 means never.
	RetryAfter time.Duration
	cause      error
}

// Error is the description.
func (r *Error) Error() string { return r.Description }

// Unwrap is the failure behind the refusal, nil when the request is at fault.
func (r *Error) Unwrap() error { return r.cause }

func refuse(code Code, description string) *Error {
	return &Error{Code: code, Description: description}
}
