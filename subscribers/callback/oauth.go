package callback

import (
	"cmp"
	"context"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"spendhook/internal/invalid"
	"spendhook/internal/secret"
)

// Bounds of an OAuth, in bytes.
const (
	maxClientID     = 512
	maxClientSecret = 1024
	maxScope        = 1024
	maxAudience     = 2048
)

// OAuth says where deliveries get the access token that they carry (Authorization: Bearer), by client
// credentials (RFC 6749, 4.4).
type OAuth struct {
	TokenURL     string      `json:"tokenUrl"` // normalised by Policy.Normalize
	ClientID     string      `json:"clientId"`
	ClientSecret secret.Text `json:"-"`
	Sealed       string      `json:"clientSecret"` // the ClientSecret as it is stored; "" when it was opened
	Scope        string      `json:"scope,omitzero"`
	Audience     string      `json:"audience,omitzero"`
	Locked       error       `json:"-"` // why the ClientSecret cannot be decrypted; else nil

	Unknown *jsontext.Value `json:",embed"` // as of a Subscriber
}

// OAuthChange changes an OAuth. A nil field is not changed; an empty Scope or Audience is removed.
type OAuthChange struct {
	Remove             bool // the whole OAuth; the other fields are ignored
	TokenURL, ClientID *string
	ClientSecret       *secret.Text
	Scope, Audience    *string
}

// Check adds to problems, and normalises the URL. A nil change has no problems.
func (c *OAuthChange) Check(problems *invalid.Error, policy Policy) {
	if c == nil || c.Remove {
		return
	}
	if c.TokenURL != nil {
		c.TokenURL = new(policy.normalize(problems, "/oauth/tokenUrl", *c.TokenURL))
	}
	checkCredential(problems, "/oauth/clientId", c.ClientID, maxClientID)
	checkCredential(problems, "/oauth/clientSecret", (*string)(c.ClientSecret), maxClientSecret)
	if c.ClientSecret != nil && *c.ClientSecret == HiddenValue {
		problems.Add("/oauth/clientSecret", "INVALID", "is what is shown in place of a value: send the secret itself, or leave it out")
	}
	checkVisible(problems, "/oauth/scope", c.Scope, maxScope, `"\`)
	checkVisible(problems, "/oauth/audience", c.Audience, maxAudience, "")
}

func checkCredential(problems *invalid.Error, field string, value *string, most int) {
	if value != nil && *value == "" {
		problems.Add(field, "REQUIRED", "is required")
	}
	checkVisible(problems, field, value, most, "")
}

// checkVisible requires the characters of RFC 6749, appendix A. It never repeats the value.
func checkVisible(problems *invalid.Error, field string, value *string, most int, not string) {
	switch {
	case value == nil:
	case len(*value) > most:
		problems.Add(field, "TOO_LONG", "must be at most %d bytes", most)
	case strings.ContainsFunc(*value, func(c rune) bool { return c < ' ' || c > '~' || strings.ContainsRune(not, c) }):
		problems.Add(field, "INVALID", "must be printable ASCII (RFC 6749, appendix A)")
	case strings.Trim(*value, " ") != *value:
		problems.Add(field, "INVALID", "must not begin or end with a space")
	}
}

// CheckTokenHost checks the host of a token URL that Check has normalised, as CheckHost does for a callback URL.
func (p Policy) CheckTokenHost(ctx context.Context, change *OAuthChange) error {
	if change == nil || change.Remove || change.TokenURL == nil {
		return nil
	}
	var problems invalid.Error
	refused, err := p.refuses(ctx, *change.TokenURL)
	if refused {
		problems.Add("/oauth/tokenUrl", "TOKEN_URL_REFUSED", notPublic)
	}
	return cmp.Or(err, problems.OrNil())
}

// ChangeOAuth returns an OAuth, which may be nil, after a change that Check has passed; nil changes nothing. The
// callback URL changes from one normalised URL to another. The secret must be given again when it, or a token,
// would go to another origin: the API does not show it, see KeepAtOrigin.
func ChangeOAuth(problems *invalid.Error, before *OAuth, change *OAuthChange, from, to string) *OAuth {
	if before == nil && change == nil || change != nil && change.Remove {
		return nil
	}
	change = cmp.Or(change, &OAuthChange{})
	after := *cmp.Or(before, &OAuth{})
	moved := before != nil && (origin(from) != origin(to) || change.TokenURL != nil && origin(before.TokenURL) != origin(*change.TokenURL))
	for _, f := range []struct{ field, value *string }{
		{&after.TokenURL, change.TokenURL},
		{&after.ClientID, change.ClientID},
		{&after.Scope, change.Scope},
		{&after.Audience, change.Audience},
	} {
		if f.value != nil {
			*f.field = *f.value
		}
	}
	switch {
	case change.ClientSecret != nil:
		after.ClientSecret, after.Sealed, after.Locked = *change.ClientSecret, "", nil
	case moved:
		problems.Add("/oauth/clientSecret", "REQUIRED", "must be given again, or oauth removed with null, when callbackUrl or tokenUrl moves to another origin")
	case before == nil:
		problems.Add("/oauth/clientSecret", "REQUIRED", "is required")
	}
	if before == nil && change.TokenURL == nil {
		problems.Add("/oauth/tokenUrl", "REQUIRED", "is required")
	}
	if before == nil && change.ClientID == nil {
		problems.Add("/oauth/clientId", "REQUIRED", "is required")
	}
	return &after
}
