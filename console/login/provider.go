package login

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/google/uuid"
	"golang.org/x/oauth2"
)

const (
	callTimeout   = 5 * time.Second // of one request to the provider
	maxAnswer     = 1 << 20         // bytes
	maxHeader     = 64 << 10        // bytes
	discoverEvery = time.Hour       // fetches the keys again, too
	discoverRetry = 5 * time.Second // after a failure, while nothing is known
	discoverLater = time.Minute     // after a failure otherwise
)

// newClient returns a client for the calls to the provider. It follows no redirects, because a code or token must not go
// to another server. Logins are rare: no connection is kept.
func newClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one, unless a test replaced it
	transport.DisableKeepAlives, transport.MaxResponseHeaderBytes = true, maxHeader
	return &http.Client{
		Timeout: callTimeout, Transport: bounded{transport},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// bounded limits the size of answers.
type bounded struct{ http.RoundTripper }

// RoundTrip returns an answer whose body fails beyond maxAnswer.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	}
	return resp, err
}

// provider is what the provider publishes about itself.
type provider struct {
	*oidc.Provider

	oauth       oauth2.Config
	verifier    *oidc.IDTokenVerifier
	sendsIssuer bool // the parameter iss, RFC 9207
}

// discovery caches the provider, so that the daemon runs while the provider is away.
type discovery struct {
	turn    chan struct{} // held by the one that reads or changes the fields below
	known   *provider
	again   time.Time // when to ask again
	failure error     // of the last try
}

func newDiscovery() discovery { return discovery{turn: make(chan struct{}, 1)} }

// provider returns the provider. After a failed try, the last known one stays in use.
func (l *Login) provider(ctx context.Context) (*provider, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	}
	if now := l.opts.Now(); !now.Before(l.again) {
		found, err := l.discover(context.WithoutCancel(ctx)) // for those that wait, too
		was := l.failure
		l.failure, l.again = err, now.Add(discoverRetry)
		if l.known != nil {
			l.again = now.Add(discoverLater)
		}
		switch {
		case err == nil:
			l.known, l.again = found, now.Add(discoverEvery)
			if was != nil {
				l.opts.Logger.Info("the login provider of the console can be used again", "issuer", l.opts.Issuer)
			}
		case was == nil:
			l.opts.Logger.Error("the login provider of the console cannot be used", "issuer", l.opts.Issuer, "exception.message", err)
		}
	}
	if l.known == nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, l.failure)
	}
	return l.known, nil
}

// Check asks the provider for what it publishes about itself, and reports what is wrong with it.
func (l *Login) Check(ctx context.Context) error {
	_, err := l.discover(ctx)
	return err
}

func (l *Login) discover(ctx context.Context) (*provider, error) {
	ctx = oidc.ClientContext(ctx, l.client)
	found, err := oidc.NewProvider(ctx, l.opts.Issuer)
	if err != nil {
		return nil, short(err) // it may have the whole answer
	}
	var more struct {
		JWKS        string   `json:"jwks_uri"`
		AuthMethods []string `json:"token_endpoint_auth_methods_supported"`
		SendsIssuer bool     `json:"authorization_response_iss_parameter_supported"`
	}
	if err := found.Claims(&more); err != nil {
		return nil, short(err)
	}
	p := &provider{Provider: found, sendsIssuer: more.SendsIssuer}
	p.oauth = oauth2.Config{
		ClientID: l.opts.ClientID, ClientSecret: l.opts.ClientSecret.Reveal(), RedirectURL: l.opts.RedirectURL,
		Endpoint: found.Endpoint(), Scopes: append([]string{oidc.ScopeOpenID}, l.opts.Scopes...),
	}
	p.oauth.Endpoint.AuthStyle = oauth2.AuthStyleInHeader // client_secret_basic, the default of OpenID Connect
	if more.AuthMethods != nil && !slices.Contains(more.AuthMethods, "client_secret_basic") {
		p.oauth.Endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	for name, address := range map[string]string{
		"authorization_endpoint": p.oauth.Endpoint.AuthURL, "token_endpoint": p.oauth.Endpoint.TokenURL, "jwks_uri": more.JWKS,
	} {
		if !l.usable(address) {
			return nil, fmt.Errorf("the provider publishes no usable %s: want an https URL", name)
		}
	}
	if address := found.UserInfoEndpoint(); address != "" && !l.usable(address) {
		return nil, errors.New("the provider publishes no usable userinfo_endpoint: want an https URL")
	}
	p.verifier = found.Verifier(&oidc.Config{ClientID: l.opts.ClientID, Now: l.opts.Now})
	return p, nil
}

// usable reports whether a secret may be sent to an address: by https, or on this machine if the issuer is there, too.
func (l *Login) usable(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || u.User != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	local := u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
	return u.Scheme == "https" || u.Scheme == "http" && local && strings.HasPrefix(l.opts.Issuer, "http:")
}

// short returns an error with the first bytes of its text: texts of the library have whole answers.
func short(err error) error { return errors.New(printable(err.Error(), 300)) }

// user is who signed in, as the provider says.
type user struct {
	subject   string
	email     string // "" if unknown or not verified
	groups    []string
	companies []uuid.UUID
	until     time.Time
}

// user exchanges the code and verifies who signed in.
func (l *Login) user(ctx context.Context, p *provider, f flow, code string) (user, error) {
	ctx = oidc.ClientContext(ctx, l.client)
	token, err := p.oauth.Exchange(ctx, code, oauth2.VerifierOption(f.verifier()))
	if err != nil {
		return user{}, exchangeError(err)
	}
	raw, _ := token.Extra("id_token").(string)
	id, err := p.verifier.Verify(ctx, raw)
	if err != nil {
		return user{}, fmt.Errorf("%w: %w", ErrRefused, short(err))
	}
	claims := map[string]any{}
	if err := id.Claims(&claims); err != nil {
		return user{}, fmt.Errorf("%w: %w", ErrRefused, short(err))
	}
	switch azp, present := claims["azp"]; {
	case id.Nonce != f.nonce():
		return user{}, fmt.Errorf("%w: its nonce is not that of this login", ErrRefused)
	case present && azp != l.opts.ClientID, !present && len(id.Audience) > 1:
		return user{}, fmt.Errorf("%w: it is for another client (azp)", ErrRefused)
	case id.Subject == "" || len(id.Subject) > 255 || printable(id.Subject, 255) != id.Subject:
		return user{}, fmt.Errorf("%w: its subject is empty, too long or not ASCII", ErrRefused)
	}
	if err := l.addUserInfo(ctx, p, token, id, claims); err != nil {
		return user{}, err
	}
	return l.read(id, claims), nil
}

// exchangeError hides what the provider answered, which may repeat the code.
func exchangeError(err error) error {
	if answer, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		kind := ErrRefused
		if answer.Response.StatusCode >= http.StatusInternalServerError {
			kind = ErrUnavailable
		}
		return fmt.Errorf("%w: the token endpoint answered %d %s", kind, answer.Response.StatusCode, printable(answer.ErrorCode, 100))
	}
	if call, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("%w: %w", ErrUnavailable, short(call))
	}
	return fmt.Errorf("%w: the answer of the token endpoint cannot be read", ErrRefused)
}

// addUserInfo adds the claims that the ID token does not have.
func (l *Login) addUserInfo(ctx context.Context, p *provider, token *oauth2.Token, id *oidc.IDToken, claims map[string]any) error {
	complete := claims[l.opts.GroupsClaim] != nil && (l.opts.CompanyClaim == "" || claims[l.opts.CompanyClaim] != nil)
	if complete || p.UserInfoEndpoint() == "" {
		return nil
	}
	if id.AccessTokenHash != "" && id.VerifyAccessToken(token.AccessToken) != nil {
		return fmt.Errorf("%w: its access token is another one (at_hash)", ErrRefused)
	}
	info, err := p.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return fmt.Errorf("%w: userinfo: %w", ErrUnavailable, short(err))
	}
	more := map[string]any{}
	if err := info.Claims(&more); err != nil || info.Subject != id.Subject {
		return fmt.Errorf("%w: userinfo is about another user", ErrRefused)
	}
	for _, name := range []string{l.opts.GroupsClaim, l.opts.CompanyClaim, "email", "email_verified"} {
		if claims[name] == nil {
			claims[name] = more[name]
		}
	}
	return nil
}

// read reads the claims. The session ends with session_expiry, the end of the session at the provider (OpenID Connect
// Enterprise Extensions), or else with the ID token.
func (l *Login) read(id *oidc.IDToken, claims map[string]any) user {
	u := user{subject: id.Subject, groups: texts(claims[l.opts.GroupsClaim]), companies: uuids(claims[l.opts.CompanyClaim]), until: id.Expiry}
	if end, ok := claims["session_expiry"].(float64); ok {
		u.until = time.Unix(int64(max(0, min(end, math.MaxUint32))), 0)
	}
	if email, ok := claims["email"].(string); ok && len(email) <= 254 && claims["email_verified"] != false && claims["email_verified"] != "false" {
		u.email = printable(email, len(email))
	}
	return u
}
