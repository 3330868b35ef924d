package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/subscribers/callback"
)

const (
	maxTokens      = 1 << 14          // kept
	maxToken       = 4096             // bytes, as of the value of a custom header
	maxTokenAnswer = 16 << 10         // bytes
	tokenTimeout   = 10 * time.Second // of a fetch: less than an attempt has
	refusalShare   = 4                // of the time of a fetch, 1/refusalShare is for the body of a refusal: the other way to authenticate needs time, too
	// minTokenLife and maxTokenLife bound how long a token is used, whatever its endpoint says: so an endpoint
	// cannot have one fetched for each delivery. unknownTokenLife is that of a token without a lifetime.
	minTokenLife     = 10 * time.Second
	maxTokenLife     = 24 * time.Hour
	unknownTokenLife = 5 * time.Minute
	maxTokenAhead    = 5 * time.Minute // a token is replaced this long before its end, or a fifth of its life
	firstTokenPause  = 5 * time.Second // after a failed fetch; doubled by each further one
	maxTokenPause    = time.Minute
	rejectionPause   = time.Minute // between two tokens that are dropped because the receiver answered 401
)

// Results of a fetch, values of the label of spendhook_receiver_tokens_total.
const (
	tokenFetched = "fetched"
	tokenRefused = "refused"
	tokenFailed  = "failed"
)

// errTokenPause is why there is no token for changed settings.
var errTokenPause = errors.New("oauth was changed, and the last request for an access token failed less than 5 s ago; the next one follows after that")

// errTokenRefused says that a token endpoint answered with an error.
var errTokenRefused = errors.New("the token endpoint refused")

// tokenSettings returns what a token is requested with, without the fields of its stored form: it is comparable.
func tokenSettings(c *callback.OAuth) callback.OAuth {
	return callback.OAuth{
		TokenURL: c.TokenURL, ClientID: c.ClientID, ClientSecret: c.ClientSecret, Scope: c.Scope, Audience: c.Audience,
	}
}

// tokens fetches the access tokens of subscribers and keeps them in memory. Fetches share no connection
// with anything, and wait for each other only within a subscriber. Safe for concurrent use.
type tokens struct {
	client  *http.Client
	timeout time.Duration
	now     func() time.Time
	making  sync.Mutex                   // of a source
	paces   *lru.Cache[uuid.UUID, *pace] // by subscriber
	fetches *prometheus.CounterVec

	fetching context.Context //nolint:containedctx // ends when the Sender is closed
	end      context.CancelFunc
}

func newTokens(o SenderOptions, t *transport) *tokens {
	paces, _ := lru.New[uuid.UUID, *pace](maxTokens) // fails only for a size < 1
	all := &tokens{timeout: min(tokenTimeout, o.Timeout), now: o.Now, paces: paces}
	all.client = &http.Client{
		Transport: &tokenTransport{
			userAgent: "spendhook/" + o.Version, http: connectionsForTokens(o, t, true), http1: connectionsForTokens(o, t, false),
			refusal: all.timeout / refusalShare,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	all.fetches = promauto.With(o.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "spendhook_receiver_tokens_total", Help: "Requests for access tokens of subscribers with oauth, by result: fetched, refused by the token endpoint, failed otherwise.",
	}, []string{"result"})
	for _, result := range []string{tokenFetched, tokenRefused, tokenFailed} {
		all.fetches.WithLabelValues(result)
	}
	all.fetching, all.end = context.WithCancel(context.Background())
	return all
}

func connectionsForTokens(o SenderOptions, t *transport, http2 bool) *http.Transport {
	return &http.Transport{
		DialContext: t.dialer.DialContext, TLSClientConfig: t.tls.Clone(), TLSHandshakeTimeout: o.ConnectTimeout,
		ForceAttemptHTTP2: http2, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxResponseHeader,
	}
}

// tokenTransport bounds the answers of token endpoints.
type tokenTransport struct {
	userAgent string
	http      *http.Transport
	http1     *http.Transport // for endpoints that refuse HTTP/2
	refusal   time.Duration   // how long the body of an error may take
}

// RoundTrip implements http.RoundTripper.
func (t *tokenTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("User-Agent", t.userAgent)
	req.Header.Set("Accept", "application/json")
	resp, err := t.http.RoundTrip(req)
	if err != nil && refusesHTTP2(err) {
		req = req.Clone(req.Context()) //nolint:contextcheck // its own
		if req.Body, err = req.GetBody(); err == nil {
			resp, err = t.http1.RoundTrip(req)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		resp.Body = t.readRefusal(resp.Body)
	default:
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxTokenAnswer)
	}
	return resp, nil
}

// readRefusal reads the body of an error, as much as comes in time. The status decides, whether or not the body
// ends well: oauth2 would take one that does not for a failure without a status.
func (t *tokenTransport) readRefusal(body io.ReadCloser) io.ReadCloser {
	late := time.AfterFunc(t.refusal, func() { _ = body.Close() })
	defer late.Stop()
	defer body.Close()
	read, _ := io.ReadAll(io.LimitReader(body, maxTokenAnswer))
	return io.NopCloser(bytes.NewReader(read))
}

// tokenSource is the token of a subscriber. Changed settings have another source.
type tokenSource struct {
	settings callback.OAuth // of tokenSettings
	pace     *pace

	mu       sync.Mutex // guards this group
	asked    bool       // a fetch has begun
	token    string
	ends     time.Time
	renewAt  time.Time     // when the next one is fetched, while this one is used
	fetch    chan struct{} // closed when the fetch under way ends; nil: none
	failures int           // fetches in a row
	failed   error         // of the last fetch; nil: none
	pausedTo time.Time     // no fetch begins before
	rejected time.Time     // when a token was last dropped
	inBody   bool          // the endpoint wants the credentials in the body (RFC 6749, 2.3.1)
}

// maxSources bounds the sources of a subscriber: its own, and those of former settings or of a change that is tried.
const maxSources = 3

// pace is of a subscriber, whatever its settings: each change of them could else be a request to a stranger's server.
type pace struct {
	sources []*tokenSource // the last used one last; tokens.making guards it

	mu    sync.Mutex
	fetch chan struct{} // the one under way; nil: none
	after time.Time     // a source does not begin its first fetch before: the last one of the subscriber has failed
}

// begin notes a fetch, unless another one is under way, which it returns, or the first one of a source is too early.
func (p *pace) begin(fetch chan struct{}, first bool, now time.Time) (ok bool, other chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fetch != nil || first && now.Before(p.after) {
		return false, p.fetch
	}
	p.fetch = fetch
	return true, nil
}

func (p *pace) end(after time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetch, p.after = nil, after
}

// source returns the source of a subscriber with its settings.
func (t *tokens) source(subscriber uuid.UUID, settings callback.OAuth) *tokenSource {
	t.making.Lock()
	defer t.making.Unlock()
	p, ok := t.paces.Get(subscriber)
	if !ok {
		p = &pace{}
		t.paces.Add(subscriber, p)
	}
	s := &tokenSource{settings: settings, pace: p}
	if i := slices.IndexFunc(p.sources, func(s *tokenSource) bool { return s.settings == settings }); i >= 0 {
		s = p.sources[i]
		p.sources = slices.Delete(p.sources, i, i+1)
	}
	p.sources = append(p.sources, s)
	p.sources = p.sources[max(0, len(p.sources)-maxSources):]
	return s
}

// get returns the token of a subscriber. It waits for a fetch only without a usable token.
func (t *tokens) get(ctx context.Context, subscriber uuid.UUID, c *callback.OAuth) (string, error) {
	s := t.source(subscriber, tokenSettings(c))
	for {
		token, fetch, err := t.current(s) //nolint:contextcheck // other attempts wait for the fetch, too
		if fetch == nil {
			return token, err
		}
		select {
		case <-fetch:
		case <-ctx.Done():
			return "", fmt.Errorf("wait for an access token: %w", context.Cause(ctx))
		}
	}
}

// current returns the token, or the fetch to wait for, or why there is no token. It begins a fetch that is due.
func (t *tokens) current(s *tokenSource) (token string, fetch chan struct{}, err error) {
	now := t.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	usable := s.token != "" && now.Before(s.ends)
	due := !usable || !now.Before(s.renewAt)
	fetch = s.fetch
	if fetch == nil && due && !now.Before(s.pausedTo) {
		begun := make(chan struct{})
		var ok bool
		if ok, fetch = s.pace.begin(begun, !s.asked, now); ok {
			s.fetch, s.asked, fetch = begun, true, begun
			go t.fetch(s, s.inBody)
		}
	}
	switch {
	case usable:
		return s.token, nil, nil
	case fetch != nil:
		return "", fetch, nil
	case s.failed == nil:
		return "", nil, errTokenPause
	}
	return "", nil, s.failed
}

// reject drops a token that the receiver answered with 401, so that the next attempt fetches another one.
func (t *tokens) reject(subscriber uuid.UUID, c *callback.OAuth, token string) {
	s, now := t.source(subscriber, tokenSettings(c)), t.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token == token && now.Sub(s.rejected) >= rejectionPause {
		s.token, s.rejected = "", now
	}
}

func (t *tokens) fetch(s *tokenSource, inBody bool) {
	ctx, cancel := context.WithTimeout(t.fetching, t.timeout)
	defer cancel()
	began := t.now()
	token, life, inBody, err := t.request(ctx, &s.settings, inBody)
	t.fetches.WithLabelValues(tokenResult(err)).Inc()
	now := t.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.token, s.ends, s.renewAt = token, began.Add(life), began.Add(life-min(life/5, maxTokenAhead))
		s.failures, s.failed, s.pausedTo, s.inBody = 0, nil, time.Time{}, inBody
		s.pace.end(time.Time{})
	} else {
		s.failed, s.pausedTo = err, now.Add(min(maxTokenPause, firstTokenPause<<min(s.failures, 8)))
		s.failures++
		s.pace.end(now.Add(firstTokenPause))
	}
	close(s.fetch)
	s.fetch = nil
}

func tokenResult(err error) string {
	switch {
	case err == nil:
		return tokenFetched
	case errors.Is(err, errTokenRefused):
		return tokenRefused
	}
	return tokenFailed
}

// request requests a token with the credentials in the body or else in a header, and the other way if the
// endpoint refuses that. It returns which way it accepted.
func (t *tokens) request(ctx context.Context, c *callback.OAuth, inBody bool) (token string, life time.Duration, accepted bool, err error) {
	defer func() { // an answer must not end the daemon, whatever it is
		if v := recover(); v != nil {
			err = fmt.Errorf("request an access token: panic: %v", v)
		}
	}()
	answer, err := t.ask(ctx, c, inBody)
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok &&
		(refused.Response.StatusCode == http.StatusBadRequest || refused.Response.StatusCode == http.StatusUnauthorized) {
		inBody = !inBody
		answer, err = t.ask(ctx, c, inBody)
	}
	if err != nil {
		return "", 0, false, tokenError(err)
	}
	if !strings.EqualFold(answer.Type(), "Bearer") {
		return "", 0, false, errors.New("the token endpoint answered with another type of token than Bearer")
	}
	if !isToken(answer.AccessToken) {
		return "", 0, false, errors.New("the token endpoint answered with a token that cannot be sent")
	}
	return strings.Clone(answer.AccessToken), lifeOf(answer), inBody, nil // it may be a part of the whole answer
}

func (t *tokens) ask(ctx context.Context, c *callback.OAuth, inBody bool) (*oauth2.Token, error) {
	config := clientcredentials.Config{
		ClientID: c.ClientID, ClientSecret: c.ClientSecret.Reveal(), TokenURL: c.TokenURL,
		AuthStyle: oauth2.AuthStyleInHeader, EndpointParams: url.Values{},
	}
	if inBody {
		config.AuthStyle = oauth2.AuthStyleInParams
	}
	if c.Scope != "" {
		config.Scopes = []string{c.Scope}
	}
	if c.Audience != "" {
		config.EndpointParams.Set("audience", c.Audience)
	}
	return config.Token(context.WithValue(ctx, oauth2.HTTPClient, t.client))
}

// errorCode is the form of the error codes of RFC 6749: another text of a token endpoint is not shown.
var errorCode = regexp.MustCompile(`^[a-z_]{1,64}$`)

// tokenError leaves out the body of an answer and the URL, which may have secrets. What is left of an answer
// that is not HTTP is short.
func tokenError(err error) error {
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		if code := refused.ErrorCode; errorCode.MatchString(code) {
			return fmt.Errorf("%w: status %d, error %s", errTokenRefused, refused.Response.StatusCode, code)
		}
		return fmt.Errorf("%w: status %d", errTokenRefused, refused.Response.StatusCode)
	}
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("request an access token: %.200s", failed.Err.Error())
	}
	return errors.New("the token endpoint's answer is not valid")
}

// isToken accepts more than RFC 6750 does, since some endpoints do not keep to its alphabet.
func isToken(token string) bool {
	return token != "" && len(token) <= maxToken && !strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' })
}

// lifeOf is how long a token is used. The endpoint gives whole seconds, in JSON as a number or as text. A form may
// have anything.
func lifeOf(answer *oauth2.Token) time.Duration {
	seconds, err := strconv.ParseFloat(fmt.Sprint(answer.Extra("expires_in")), 64)
	if err != nil || !(seconds > 0) { // NaN of a form too
		return unknownTokenLife
	}
	return max(minTokenLife, time.Duration(min(seconds, maxTokenLife.Seconds()))*time.Second)
}

// withToken adds the token to the headers of a subscriber, which have no other Authorization.
func withToken(headers http.Header, token string) http.Header {
	all := make(http.Header, len(headers)+1)
	maps.Copy(all, headers)
	all["Authorization"] = []string{"Bearer " + token}
	return all
}

// classifyToken is the class of an attempt without a token; ctx is the attempt's context.
func classifyToken(ctx context.Context, err error) attempt.ErrorClass {
	switch {
	case errors.Is(err, errTokenRefused):
		return attempt.ClassTokenRefused
	case ctx.Err() != nil && !errors.Is(context.Cause(ctx), errAttemptTimeout):
		return attempt.ClassAborted
	}
	return attempt.ClassToken
}
