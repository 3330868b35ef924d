package login

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"
	"time"
)

// flow is one login of a browser. State, nonce and PKCE verifier are derived from the random secret in the browser's
// cookie and from the time at which the login began, so that nothing is stored for logins that strangers begin.
type flow struct {
	begun  time.Time
	secret string // 32 random bytes, base64url
}

func newFlow(now time.Time) flow {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	return flow{begun: time.Unix(now.Unix(), 0), secret: base64.RawURLEncoding.EncodeToString(secret)}
}

// parseFlow reads a cookie.
func parseFlow(cookie string) (f flow, ok bool) {
	at, secret, _ := strings.Cut(cookie, ".")
	seconds, err := strconv.ParseInt(at, 10, 64)
	return flow{begun: time.Unix(seconds, 0), secret: secret}, err == nil && len(secret) == base64.RawURLEncoding.EncodedLen(32)
}

func (f flow) cookie() string { return strconv.FormatInt(f.begun.Unix(), 10) + "." + f.secret }

// derive returns 256 bits for a purpose. Nobody can compute those of another purpose from them.
func (f flow) derive(purpose string) []byte {
	mac := hmac.New(sha256.New, []byte(f.secret))
	mac.Write([]byte(purpose + " " + strconv.FormatInt(f.begun.Unix(), 10)))
	return mac.Sum(nil)
}

func (f flow) text(purpose string) string {
	return base64.RawURLEncoding.EncodeToString(f.derive(purpose))
}

func (f flow) state() string    { return f.text("state") }
func (f flow) nonce() string    { return f.text("nonce") }
func (f flow) verifier() string { return f.text("verifier") }

// id names the flow in Redis.
func (f flow) id() string { return hex.EncodeToString(f.derive("id")[:16]) }

func (f flow) isState(state string) bool { return hmac.Equal([]byte(f.state()), []byte(state)) }
