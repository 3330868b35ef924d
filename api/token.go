package api

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/auth"
	"spendhook/auth/tokens"
	"spendhook/internal/clientcert"
	"spendhook/internal/peer"
	"spendhook/subscribers"
)

const tokenPath = "/oauth/token" //nolint:gosec // a path is no credential

// basicRealm challenges a client that could not be authenticated.
const basicRealm = `Basic realm="spendhook", charset="UTF-8"`

// IssueToken is POST /oauth/token (RFC 6749 section 4.4).
func (s *server) IssueToken(w http.ResponseWriter, r *http.Request) {
	if s.opts.Tokens == nil {
		s.failToken(w, r, noIssuer())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.opts.Timeout)
	defer cancel()
	token, err := s.opts.Tokens.Issue(ctx, tokenRequest(r))
	if err != nil {
		s.failToken(w, r, err)
		return
	}
	s.sendToken(w, r, http.StatusOK, nil, gen.AccessToken{
		AccessToken: token.AccessToken, TokenType: gen.AccessTokenTokenTypeBearer,
		ExpiresIn: int(token.ExpiresIn / time.Second), Scope: strings.Join(token.Scopes, " "),
	})
}

func tokenRequest(r *http.Request) tokens.Request {
	return tokens.Request{
		Authorization: r.Header.Values("Authorization"), Form: bodyOf(r), Address: peer.Address(r.Context()),
		Certificate: clientcert.ThumbprintFrom(r.Context()),
	}
}

func noIssuer() *problem {
	return newProblem(http.StatusNotFound, "NO_BUILTIN_ISSUER", "This daemon issues no tokens; ask the issuer that it trusts.")
}

func (s *server) sendToken(w http.ResponseWriter, r *http.Request, status int, header http.Header, content any) {
	body, err := encode(content)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Pragma", "no-cache") // RFC 6749 section 5.1, beside Cache-Control: no-store
	send(w, reply{status: status, header: header, body: body})
}

// failToken answers with an error as OAuth clients expect it (RFC 6749 section
// 5.2), where the rest of the API has problem documents.
func (s *server) failToken(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	code := oauthError(p.status)
	if refusal, ok := errors.AsType[*tokens.Error](err); ok {
		p, code = refusalProblem(refusal)
	}
	s.logFailure(r, w.Header().Get("X-Request-Id"), p)
	s.sendToken(w, r, p.status, p.header, gen.OAuthError{Error: code, ErrorDescription: p.detail})
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

func refusalProblem(refusal *tokens.Error) (*problem, gen.OAuthErrorError) {
	answer := tokenRefusals[refusal.Code]
	p := newProblem(cmp.Or(answer.status, http.StatusBadRequest), string(refusal.Code), "%s", refusal.Description)
	p.header = http.Header{}
	p.cause = refusal.Unwrap()
	if p.status == http.StatusUnauthorized {
		p.header.Set("WWW-Authenticate", basicRealm)
	}
	if refusal.RetryAfter > 0 {
		p.header.Set("Retry-After", strconv.Itoa(wholeSeconds(refusal.RetryAfter)))
	}
	return p, cmp.Or(answer.code, oauthError(p.status))
}

// GetAuthorizationServer is GET /.well-known/oauth-authorization-server.
func (s *server) GetAuthorizationServer(w http.ResponseWriter, r *http.Request) {
	s.do(w, r, func(context.Context, *caller) (reply, error) {
		if s.opts.Keys == nil {
			return reply{}, noIssuer()
		}
		return ok(s.metadata()).with("Cache-Control", cacheable), nil
	})
}

// metadata is RFC 8414 section 2, with the members of RFC 8705 section 3.3. A
// client's certificate is known by its thumbprint, whatever CA signed it.
func (s *server) metadata() gen.AuthorizationServer {
	return gen.AuthorizationServer{
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
	}
}

const cacheable = "public, max-age=300"

// GetJwks is GET /.well-known/jwks.json.
func (s *server) GetJwks(w http.ResponseWriter, r *http.Request) {
	s.do(w, r, func(context.Context, *caller) (reply, error) {
		if s.opts.Keys == nil {
			return reply{}, noIssuer()
		}
		keys := map[string]any{"keys": s.opts.Keys.JWKS()}
		return ok(keys).with("Cache-Control", cacheable), nil
	})
}

// GetWebhookKeys is GET /.well-known/webhook-keys/{companyUuid}.
func (s *server) GetWebhookKeys(w http.ResponseWriter, r *http.Request, company uuid.UUID) {
	s.do(w, r, func(ctx context.Context, _ *caller) (reply, error) {
		if !s.opts.SignEd25519 {
			return reply{}, subscribers.ErrNoSigningKey
		}
		stored, err := s.opts.Subscribers.SigningKey(ctx, company)
		if err != nil {
			return reply{}, err
		}
		key, err := stored.Open()
		if err != nil {
			return reply{}, err
		}
		return ok(shownKey(key)).with("Cache-Control", cacheable), nil
	})
}

func shownKey(key ed25519.PrivateKey) gen.WebhookKeys {
	public := key[len(key)-ed25519.PublicKeySize:]
	return gen.WebhookKeys{Keys: []gen.WebhookKey{{
		Algorithm: gen.WebhookKeyAlgorithmEd25519, PublicKey: "whpk_" + base64.StdEncoding.EncodeToString(public),
	}}}
}
