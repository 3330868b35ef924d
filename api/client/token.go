package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// Credentials get access tokens by the client credentials grant.
type Credentials struct {
	ID     string
	Secret string // "" for a client that authenticates by its certificate alone
	Scope  string // separated by spaces; "" requests all scopes of the client

	// Token is the token of an earlier run and is used first. Keep is called with each new
	// token, by one goroutine at a time. Both are optional.
	Token Token
	Keep  func(Token)
}

// Token is an access token with its expiry.
type Token struct {
	Access  string    `json:"access"`
	Expires time.Time `json:"expires"`
}

// tokenSource gives the token of a request.
type tokenSource interface {
	token(ctx context.Context) (string, error)
	// renew discards the refused token, so that the next call of token gets another one.
	// It returns false when there is no way to get another token.
	renew(refused string) bool
}

type fixed string

func (f fixed) token(context.Context) (string, error) { return string(f), nil }

func (fixed) renew(string) bool { return false }

// tokens caches one token and requests the next one shortly before it expires. It is safe
// for concurrent use: one caller sends the request, the others wait.
type tokens struct {
	credentials Credentials
	issuer      *ClientWithResponses
	now         func() time.Time
	turn        chan struct{} // a lock, of capacity 1, for the fields below
	current     Token
	renewAt     time.Time
}

func newTokens(c Credentials, issuer *ClientWithResponses, now func() time.Time) *tokens {
	t := &tokens{credentials: c, issuer: issuer, now: now, turn: make(chan struct{}, 1)}
	t.set(c.Token)
	t.turn <- struct{}{}
	return t
}

// set caches a token. The token is renewed one minute before it expires, or when a tenth of
// its lifetime is left, whichever is later.
func (t *tokens) set(token Token) {
	left := max(token.Expires.Sub(t.now()), 0)
	t.current, t.renewAt = token, token.Expires.Add(-min(time.Minute, left/10))
}

func (t *tokens) token(ctx context.Context) (string, error) {
	select {
	case <-t.turn:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	defer func() { t.turn <- struct{}{} }()
	if t.current.Access != "" && t.now().Before(t.renewAt) {
		return t.current.Access, nil
	}
	token, err := t.issue(ctx)
	if err != nil {
		return "", err
	}
	t.set(token)
	if t.credentials.Keep != nil {
		t.credentials.Keep(token)
	}
	return token.Access, nil
}

func (t *tokens) renew(refused string) bool {
	<-t.turn
	defer func() { t.turn <- struct{}{} }()
	if t.current.Access == refused {
		t.current = Token{}
	}
	return true
}

func (t *tokens) issue(ctx context.Context) (Token, error) {
	c, requested := t.credentials, t.now()
	grant := TokenRequestGrantTypeClientCredentials
	request := TokenRequest{GrantType: &grant}
	if c.Scope != "" {
		request.Scope = &c.Scope
	}
	if c.Secret == "" {
		request.ClientID = &c.ID
	}
	answer, err := t.issuer.IssueTokenWithFormdataBodyWithResponse(ctx, request, func(_ context.Context, req *http.Request) error {
		if c.Secret != "" { // id and secret are form-encoded first (RFC 6749 section 2.3.1)
			req.SetBasicAuth(url.QueryEscape(c.ID), url.QueryEscape(c.Secret))
		}
		return nil
	})
	if err != nil {
		return Token{}, err
	}
	if answer.JSON200 == nil {
		return Token{}, errors.New("the token endpoint did not answer with a token")
	}
	lifetime := time.Duration(answer.JSON200.ExpiresIn) * time.Second
	return Token{Access: answer.JSON200.AccessToken, Expires: requested.Add(lifetime)}, nil
}
