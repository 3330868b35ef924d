package remote

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"

	"spendhook/api/client"
)

// Kind classifies a failure. It is the exit code.
type Kind int

// Kinds of failures.
const (
	Failed      Kind = 1
	NotAllowed  Kind = 3 // no valid credentials, or a scope is missing
	NotFound    Kind = 4 // the object does not exist, or was deleted
	Unavailable Kind = 5 // the daemon is unreachable or busy: a later attempt may succeed
)

// KindOf returns the kind of a command's error.
func KindOf(err error) Kind {
	e, answered := errors.AsType[*client.Error](err)
	if !answered {
		_, asked := errors.AsType[*url.Error](err)
		switch {
		case refusedByPeer(err):
			return NotAllowed
		case asked && !untrusted(err) && !errors.Is(err, http.ErrSchemeMismatch):
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

// untrusted reports whether the command refused the daemon's certificate.
func untrusted(err error) bool {
	_, ok := errors.AsType[*tls.CertificateVerificationError](err)
	return ok
}

// refusedByPeer reports whether the daemon ended the TLS handshake, because the command presented
// no client certificate that the daemon trusts.
func refusedByPeer(err error) bool {
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "remote error"
}

const giveCertificate = "Give a certificate with --cert and --key, or save one in the profile: spendhook login --cert … --key …"

// Advice returns the next step after an error, and "" if there is no advice.
func Advice(err error) string {
	e, answered := errors.AsType[*client.Error](err)
	if answered {
		return adviceOn(e)
	}
	switch {
	case untrusted(err):
		return "The daemon's certificate is not trusted: give its CA with --cacert, and use a name of the certificate in --url."
	case refusedByPeer(err):
		return giveCertificate
	case errors.Is(err, http.ErrSchemeMismatch):
		return "This address does not use TLS: begin --url with http://, or check the port."
	case KindOf(err) == Unavailable:
		return "The daemon cannot be reached: is it running, and is --url (SPENDHOOK_URL, or the profile's) its address?"
	}
	return ""
}

func adviceOn(e *client.Error) string {
	switch {
	case e.Code == "CLIENT_CERTIFICATE_REQUIRED" || e.Code == "CLIENT_CERTIFICATE_INVALID":
		return giveCertificate
	case e.Code == "INSUFFICIENT_SCOPE":
		return "Log in with a client that has the scope; the operator creates such a client with 'spendhook client create --scope …'."
	case e.Status == http.StatusUnauthorized:
		return "Log in again with 'spendhook login'. A token in SPENDHOOK_TOKEN or --token-file takes precedence: replace or unset it."
	case e.Status == http.StatusForbidden:
		return "Check --company-uuid and --profile: 'spendhook profile list' shows the profiles."
	case e.Code == "NO_SUCH_ROUTE" || (e.Code == "HTTP_ERROR" && e.Status == http.StatusNotFound):
		return "Is --url (SPENDHOOK_URL, or the profile's) the address of a daemon? The URL has no path, except behind a proxy."
	case e.Code == "NO_EGRESS_CERTIFICATE":
		return "Set a certificate with 'spendhook certificate set'."
	case e.Code == "NO_EGRESS_ADDRESSES":
		return "Ask the operator of the daemon: the setting egress.addresses has none."
	case e.Status == http.StatusNotFound:
		return "The list command shows the ids. Check --company-uuid and --profile too."
	case KindOf(e) == Unavailable:
		return "Try again later, or for longer with --retry-for 5m."
	case e.Type != "":
		return "See " + e.Type
	}
	return ""
}
