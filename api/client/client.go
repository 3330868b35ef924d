// Package client is a Go client of the Spendhook API.
//
// The types and methods are generated from the API document. New adds what is the same
// for every operation: access tokens, retries, idempotency keys and errors.
//
//	api, err := client.New("https://hooks.example.com", client.Options{
//		Credentials: &client.Credentials{ID: id, Secret: secret},
//	})
//	...
//	page, err := api.ListSubscribersWithResponse(ctx, &client.ListSubscribersParams{})
//	...
//	for _, subscriber := range page.JSON200.Content {
//
// An answer other than 2xx is an *Error. So if the error is nil, the field for the success, such as
// JSON200, is set. Each operation has two methods: ListSubscribersWithResponse
// decodes the answer, ListSubscribers leaves that to the caller, who closes the body.
//
// An Emitter sends events, and repeats what is refused for a while. The generated methods send an array, with one result for
// each event in JSON2XX. Events may be refused without an error: send those again whose result has a
// RetryAfter. If all were refused for one reason that passes, the client repeats the request as it does any
// other, and then returns the reason as an *Error.
package client

import (
	"cmp"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Options say how a client connects. The zero value sends no token.
type Options struct {
	// Token is sent with every request. Credentials get tokens instead, and renew
	// them before they expire. Set one of the two.
	Token       string
	Credentials *Credentials
	// Insecure allows sending a token over plain http to another host than this one.
	Insecure bool

	// Transport carries the requests, with the client's certificate for instance; nil
	// means http.DefaultTransport.
	Transport http.RoundTripper
	// Timeout bounds one attempt, including the reading of its answer. 0 means 30 s; a
	// negative value means no bound.
	Timeout time.Duration
	// RetryFor bounds the time in which a request is retried. 0 means 30 s; a negative
	// value disables retries.
	RetryFor time.Duration
	// Retrying is called before each wait; attempts says how many attempts failed, err how
	// the last one did. It must be safe for concurrent use. nil: not called.
	Retrying func(attempts int, err error)
	// UserAgent names the program. "" means "spendhook-go".
	UserAgent string
	// Now returns the time; nil means time.Now.
	Now func() time.Time
}

// New returns a client of the daemon with the base address server. The client is safe for concurrent
// use. It connects with its first request.
//
// A request without an answer, or with 502, 503 or 504, is retried when a retry is safe:
// GET, HEAD, PUT, DELETE, and POST, which the client gives an Idempotency-Key unless it
// has one. After 429 any request is retried, since nothing was done. The waits double from 200 ms
// to 10 s and are never shorter than Retry-After. The end of the context ends them. A request is not
// retried if one side refuses the certificate of the other, or if the address speaks another protocol.
// A retried DELETE may be answered 404, because an earlier attempt was carried out.
func New(server string, o Options) (*ClientWithResponses, error) {
	with, server, err := newSender(server, o)
	if err != nil {
		return nil, err
	}
	return NewClientWithResponses(server, WithHTTPClient(with))
}

// newSender returns a sender that has the token, and the address without its last slash.
func newSender(server string, o Options) (*sender, string, error) {
	base, err := url.Parse(server)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, "", errors.New("the address of the daemon must begin with http:// or https://")
	}
	if o.Token != "" && o.Credentials != nil {
		return nil, "", errors.New("give a token or credentials, not both")
	}
	if (o.Token != "" || o.Credentials != nil) && base.Scheme == "http" && !o.Insecure && !loopback(base.Hostname()) {
		return nil, "", errors.New("a token must not be sent over http to another host; begin the address with https://, or allow it with Insecure")
	}
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the nil default
	}
	plain := &sender{
		http: &http.Client{
			Transport:     o.Transport,
			Timeout:       max(cmp.Or(o.Timeout, 30*time.Second), 0),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		agent:    cmp.Or(o.UserAgent, "spendhook-go"),
		retryFor: cmp.Or(o.RetryFor, 30*time.Second),
		retrying: o.Retrying,
		now:      o.Now,
	}
	server = strings.TrimRight(server, "/")
	with := *plain
	switch {
	case o.Credentials != nil:
		issuer, err := NewClientWithResponses(server, WithHTTPClient(plain))
		if err != nil {
			return nil, "", err
		}
		with.tokens = newTokens(*o.Credentials, issuer, o.Now)
	case o.Token != "":
		with.tokens = fixed(o.Token)
	}
	return &with, server, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}
