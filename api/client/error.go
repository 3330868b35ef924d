package client

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxProblem bounds the read part of an error answer, in bytes.
const maxProblem = 1 << 20

// Error is an error answer. Its fields come from the problem document or from the OAuth error.
type Error struct {
	Status    int    `json:"status"`
	Code      string `json:"code"` // stable; HTTP_ERROR when the answer has no code, such as one of a proxy
	Title     string `json:"title"`
	Detail    string `json:"detail"`
	RequestID string `json:"requestId"`
	// Type is the address of a page about the code.
	Type string `json:"type"`
	// Errors name the parts of the request that are at fault.
	Errors []FieldError `json:"errors"`
	// Results are those of the events of an array, when all were refused for this reason.
	Results []EventItemResult `json:"results"`
	// RetryAfter is how long to wait before trying again; 0 when the answer does not say.
	RetryAfter time.Duration `json:"-"`
}

// Error is one line: the status, the code, and what is wrong with each field.
func (e *Error) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d %s: %s", e.Status, e.Code, cmp.Or(e.Detail, e.Title, http.StatusText(e.Status)))
	for _, f := range e.Errors {
		if !strings.Contains(e.Detail, f.Message) {
			fmt.Fprintf(&text, "; %s: %s", f.Field, f.Message)
		}
	}
	return text.String()
}

// oauthError is an error of the token endpoint (RFC 6749 section 5.2).
type oauthError struct {
	Code        string `json:"error"`
	Description string `json:"error_description"`
}

func newError(resp *http.Response, now time.Time) *Error {
	e := &Error{}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err == nil {
		var refusal oauthError
		_ = json.Unmarshal(text, e)        // the answer of a proxy may be no JSON
		_ = json.Unmarshal(text, &refusal) // the form of the token endpoint
		e.Code, e.Detail = cmp.Or(e.Code, refusal.Code), cmp.Or(e.Detail, refusal.Description)
	}
	if resp.StatusCode == http.StatusBadRequest && bytes.Contains(text, []byte("HTTP request to an HTTPS server")) {
		e.Detail = "the daemon serves TLS at this address; begin it with https://"
	}
	e.Status, e.Code = resp.StatusCode, cmp.Or(e.Code, "HTTP_ERROR")
	e.RequestID = cmp.Or(e.RequestID, resp.Header.Get("X-Request-Id"))
	e.RetryAfter = retryAfter(resp.Header.Get("Retry-After"), now)
	return e
}

// retryAfter reads seconds or a date (RFC 9110 section 10.2.3).
func retryAfter(text string, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(text); err == nil {
		return max(time.Duration(min(seconds, 1<<30))*time.Second, 0)
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}
