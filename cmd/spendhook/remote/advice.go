package remote

import (
	"errors"
	"net/http"
	"net/url"

	"spendhook/api/client"
)

// Kind classifies a failure for the exit code.
type Kind int

// Kinds of failures.
const (
	Failed      Kind = iota
	NotAllowed       // no credentials, wrong ones, or not enough
	NotFound         // there is no such thing, or no longer
	Unavailable      // the daemon is unreachable or busy: the same may succeed later
)

// KindOf is the kind of an error of a command.
func KindOf(err error) Kind {
	e, answered := errors.AsType[*client.Error](err)
	if !answered {
		if _, asked := errors.AsType[*url.Error](err); asked {
			return Unavailable
		}
		return Failed
	}
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return NotAllowed
	case http.StatusNotFound, http.StatusGone:
		return NotFound
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return Unavailable
	}
	return Failed
}

// Advice names the next step after an error, "" when there is nothing to add.
func Advice(err error) string {
	e, answered := errors.AsType[*client.Error](err)
	if !answered {
		if KindOf(err) == Unavailable {
			return "The daemon was not reached: is it running, and is --url (SPENDHOOK_URL, or the profile's) its address?"
		}
		return ""
	}
	switch {
	case e.Code == "CLIENT_CERTIFICATE_REQUIRED" || e.Code == "CLIENT_CERTIFICATE_INVALID":
		return "Give a certificate with --cert and --key, or keep one in the profile: spendhook login --cert … --key …"
	case e.Code == "INSUFFICIENT_SCOPE":
		return "Log in with a client that has the scope; the operator makes one with 'spendhook client create --scope …'."
	case e.Status == http.StatusUnauthorized:
		return "Log in again: spendhook login."
	case e.Status == http.StatusForbidden:
		return "Look at --company-uuid, and at which profile is used: spendhook profile list."
	case e.Status == http.StatusNotFound:
		return "Look for it with the command list, and at which company and profile are used."
	case KindOf(err) == Unavailable:
		return "Try again later, or for longer with --retry-for 5m."
	case e.Type != "":
		return "See " + e.Type
	}
	return ""
}
