package api

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"spendhook/api/gen"
	"spendhook/auth"
	"spendhook/auth/tokens"
	"spendhook/internal/clientcert"
	"spendhook/internal/peer"
)

const tokenPath = "/oauth/token" //nolint:gosec // a path is no credential

// basicRealm challenges a client that could not be authenticated.
const basicRealm = `Basic realm="spendhook", charset="UTF-8"`

// IssueToken is POST /oauth/token (RFC 6749 section 4.4).
func (s *server) IssueToken(ctx context.Context, q *request) (reply, error) {
	if s.opts.Tokens == nil {
		return reply{}, noIssuer()
	}
	token, err := s.opts.Tokens.Issue(ctx, tokens.Request{
		Authorization: q.sent.Header.Values("Authorization"), Form: q.body, Address: peer.Address(ctx),
		Certificate: clientcert.ThumbprintFrom(ctx),
	})
	if err != nil {
		return reply{}, err
	}
	return ok(gen.AccessToken{
		AccessToken: token.AccessToken, TokenType: gen.AccessTokenTokenTypeBearer,
		ExpiresIn: int(token.ExpiresIn / time.Second), Scope: strings.Join(token.Scopes, " "),
	}).with("Pragma", "no-cache"), nil // RFC 6749 section 5.1, beside Cache-Control: no-store
}

func noIssuer() *problem {
	return newProblem("NO_BUILTIN_ISSUER", "This daemon issues no tokens; ask the issuer that it trusts.")
}

// oauthFailure is the answer to a token request that OAuth clients expect (RFC 6749 section 5.2), where
// the rest of the API has problem documents.
func oauthFailure(p *problem) reply {
	code := cmp.Or(tokenRefusals[tokens.Code(p.code)].code, oauthError(p.status))
	rep := reply{status: p.status, header: p.header, body: encoded(gen.OAuthError{Error: code, ErrorDescription: p.detail})}
	return rep.with("Pragma", "no-cache")
}

// oauthError is the OAuth error for a request that was refused before its form was read.
func oauthError(status int) gen.OAuthErrorError {
	switch {
	case status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests:
		return gen.OAuthErrorErrorTemporarilyUnavailable
	case status >= http.StatusInternalServerError:
		return gen.OAuthErrorErrorServerError
	default:
		return gen.OAuthErrorErrorInvalidRequest
	}
}

// tokenRefusals are the answers to the errors of package tokens: their status, and their code
// when RFC 6749 has one for them.
var tokenRefusals = map[tokens.Code]struct {
	status int
	code   gen.OAuthErrorError
}{
	tokens.InvalidClient:        {http.StatusUnauthorized, gen.OAuthErrorErrorInvalidClient},
	tokens.InvalidScope:         {http.StatusBadRequest, gen.OAuthErrorErrorInvalidScope},
	tokens.UnsupportedGrantType: {http.StatusBadRequest, gen.OAuthErrorErrorUnsupportedGrantType},
	tokens.TooManyTokens:        {http.StatusTooManyRequests, ""},
	tokens.Unavailable:          {http.StatusServiceUnavailable, ""},
}

func refusalProblem(refusal *tokens.Error) *problem {
	p := &problem{
		status: cmp.Or(tokenRefusals[refusal.Code].status, http.StatusBadRequest), code: string(refusal.Code),
		detail: refusal.Description, header: http.Header{}, cause: refusal.Unwrap(),
	}
	if p.status == http.StatusUnauthorized {
		p.header.Set("WWW-Authenticate", basicRealm)
	}
	if refusal.RetryAfter > 0 {
		p.header.Set("Retry-After", strconv.Itoa(wholeSeconds(refusal.RetryAfter)))
	}
	return p
}

// GetAuthorizationServer is GET /.well-known/oauth-authorization-server: RFC 8414 section 2, with the members of
// RFC 8705 section 3.3. A client's certificate is identified by its thumbprint, not by its CA.
func (s *server) GetAuthorizationServer(context.Context, *request) (reply, error) {
	if s.opts.Keys == nil {
		return reply{}, noIssuer()
	}
	return ok(gen.AuthorizationServer{
		Issuer:                 s.opts.Keys.Issuer(),
		TokenEndpoint:          s.opts.PublicURL + tokenPath,
		JwksURI:                s.opts.PublicURL + "/.well-known/jwks.json",
		ServiceDocumentation:   s.opts.PublicURL + "/docs",
		ScopesSupported:        auth.KnownScopes(),
		ResponseTypesSupported: []string{},
		GrantTypesSupported: []gen.AuthorizationServerGrantTypesSupported{
			gen.AuthorizationServerGrantTypesSupportedClientCredentials,
		},
		TokenEndpointAuthMethodsSupported: []gen.AuthorizationServerTokenEndpointAuthMethodsSupported{
			gen.AuthorizationServerTokenEndpointAuthMethodsSupportedClientSecretBasic,
			gen.AuthorizationServerTokenEndpointAuthMethodsSupportedClientSecretPost,
			gen.AuthorizationServerTokenEndpointAuthMethodsSupportedTLSClientAuth,
			gen.AuthorizationServerTokenEndpointAuthMethodsSupportedSelfSignedTLSClientAuth,
		},
		TLSClientCertificateBoundAccessTokens: true,
	}).with("Cache-Control", cacheable), nil
}

const cacheable = "public, max-age=300"

// GetJwks is GET /.well-known/jwks.json.
func (s *server) GetJwks(context.Context, *request) (reply, error) {
	if s.opts.Keys == nil {
		return reply{}, noIssuer()
	}
	keys, err := s.opts.Keys.JWKS()
	if err != nil {
		return reply{}, err
	}
	return ok(map[string]any{"keys": keys}).with("Cache-Control", cacheable), nil
}
