package conformance_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/asn1"
	"encoding/base64"
	"fmt"
	"maps"
	"math/big"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"spendhook/dispatcher/webhook/signature"
	"spendhook/internal/httpsig"
	"spendhook/internal/secret"
	"spendhook/subscribers"
)

//go:generate go test . -run TestVectors$ -update

// now is the clock of all cases: 2026-11-20T09:30:00Z.
const now = 1795167000

const (
	origin = "https://ledger.example.com"
	path   = "/hooks/spendhook"
	body   = `{"id":"pay-4711","companyUuid":"0197a1b2-0000-7000-8000-000000000001","event":"PAYMENT_PAID","timestamp":"2026-11-20T09:29:59.000Z","metadata":{"amount":"12.50"}}`
)

var (
	firstSecret  = "whsec_" + base64.StdEncoding.EncodeToString([]byte("the first of our secrets, 32 B.."))
	secondSecret = "whsec_" + base64.StdEncoding.EncodeToString([]byte("the second one, 24 bytes"))
	firstKey     = ed25519.NewKeyFromSeed([]byte("the seed of the first key, 32 B."))
	secondKey    = ed25519.NewKeyFromSeed([]byte("the seed of the second key, 32 B"))
	unknownKey   = ed25519.NewKeyFromSeed([]byte("the seed of nobody's key, 32 B.."))
	ecdsaKey     = newECDSAKey("the scalar of the P-256 key, 32B")
	ecdsaSecond  = newECDSAKey("the scalar of the second of 32 B")
)

func newECDSAKey(scalar string) *ecdsa.PrivateKey {
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), []byte(scalar))
	if err != nil {
		panic(err)
	}
	return key
}

func publicKey(public ed25519.PublicKey) string {
	return "whpk_" + base64.StdEncoding.EncodeToString(public)
}

// repeatable signs as the daemon does, but the same message always with the same signature (RFC 6979).
type repeatable struct {
	httpsig.Key
	private *ecdsa.PrivateKey
}

func (k repeatable) Sign(base []byte) ([]byte, error) {
	der, err := k.der(base)
	if err != nil {
		return nil, err
	}
	var point struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &point); err != nil {
		return nil, err
	}
	raw := make([]byte, 64)
	point.R.FillBytes(raw[:32])
	point.S.FillBytes(raw[32:])
	return raw, nil
}

func (k repeatable) der(base []byte) ([]byte, error) {
	sum := sha256.Sum256(base)
	return k.private.Sign(nil, sum[:], crypto.SHA256)
}

func messageKey(t *testing.T, private crypto.Signer) httpsig.Key {
	t.Helper()
	key, err := httpsig.NewKey(private)
	if err != nil {
		t.Fatal(err)
	}
	if private, ok := private.(*ecdsa.PrivateKey); ok {
		return repeatable{key, private}
	}
	return key
}

func published(t *testing.T, keys ...crypto.Signer) *keySet {
	t.Helper()
	set := &keySet{}
	for _, private := range keys {
		jwk, err := httpsig.PublicJWK(private.Public())
		if err != nil {
			t.Fatal(err)
		}
		set.Keys = append(set.Keys, jwk)
	}
	return set
}

// message is a delivery that a case changes before and after it is signed.
type message struct {
	t *testing.T // nil: not signed by RFC 9421

	secrets   []string // of the receiver
	signing   []string // of the sender
	v1a       ed25519.PrivateKey
	keys      *keySet
	origin    string
	target    string // as the receiver sees it: path and query
	signed    string // the URL that is signed
	method    string
	key       crypto.Signer
	created   int64
	lifetime  int64
	timestamp string
	id        string
	sequence  string
	previous  string
	body      string

	headers map[string]string // after they were signed
	base    []byte            // what again signed
}

func newStandard() *message {
	return &message{
		secrets: []string{firstSecret}, signing: []string{firstSecret}, target: path, method: "POST",
		timestamp: strconv.Itoa(now), id: "pay-4711", sequence: "4711", previous: "4708", body: body,
	}
}

func newMessage(t *testing.T) *message {
	t.Helper()
	return &message{
		t: t, keys: published(t, firstKey, ecdsaKey), origin: origin, target: path, signed: origin + path, method: "POST", key: firstKey,
		created: now, lifetime: 300, timestamp: strconv.Itoa(now), id: "pay-4711", sequence: "4711", previous: "4708", body: body,
	}
}

func newBoth(t *testing.T) *message {
	t.Helper()
	m := newMessage(t)
	m.secrets, m.signing = []string{firstSecret}, []string{firstSecret}
	return m
}

// sign makes the headers, once.
func (m *message) sign() *message {
	if m.headers != nil {
		return m
	}
	m.headers = map[string]string{
		"content-type": "application/json", signature.HeaderID: m.id, signature.HeaderTimestamp: m.timestamp,
	}
	if m.sequence != "" {
		m.headers[signature.HeaderSequence] = m.sequence
	}
	if m.previous != "" {
		m.headers[signature.HeaderPrevious] = m.previous
	}
	if len(m.signing) > 0 {
		m.headers[signature.HeaderSignature] = m.standard()
	}
	if m.key != nil {
		m.signMessage()
	}
	return m
}

// standard is the header webhook-signature, as the daemon makes it. A timestamp that is no number is
// signed as it stands.
func (m *message) standard() string {
	secrets := make([]subscribers.SigningSecret, 0, len(m.signing))
	for _, s := range m.signing {
		secrets = append(secrets, subscribers.SigningSecret{Key: secret.Text(s)})
	}
	signer, err := signature.New(secrets, m.v1a)
	if err != nil {
		panic(err)
	}
	if seconds, err := strconv.ParseInt(m.timestamp, 10, 64); err == nil && strconv.FormatInt(seconds, 10) == m.timestamp {
		return signer.Sign(m.id, seconds, []byte(m.body))
	}
	return signText(m.signing[0], m.id+"."+m.timestamp+"."+m.body)
}

// signText is a v1 signature of any text.
func signText(secret, text string) string {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		panic(err)
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return "v1," + base64.StdEncoding.EncodeToString(h.Sum(nil))
}

func (m *message) signMessage() {
	m.t.Helper()
	target, err := url.Parse(m.signed)
	if err != nil {
		m.t.Fatal(err)
	}
	headers, err := httpsig.Sign(messageKey(m.t, m.key), httpsig.Message{
		Method: m.method, URL: target, ContentType: m.headers["content-type"], Body: []byte(m.body),
		ID: m.id, Timestamp: m.timestamp, Sequence: m.sequence, Previous: m.previous,
	}, time.Unix(m.created, 0), time.Duration(m.lifetime)*time.Second)
	if err != nil {
		m.t.Fatal(err)
	}
	m.headers["content-digest"], m.headers["signature-input"], m.headers["signature"] = headers.Digest, headers.Input, headers.Signature
}

func (m *message) vector(name string) vector {
	m.sign()
	secrets := m.secrets
	if secrets == nil {
		secrets = []string{}
	}
	return vector{
		Name: name, Secrets: secrets, Keys: m.keys, Origin: m.origin, Method: m.method, URL: m.target,
		Headers: maps.Clone(m.headers), Body: []byte(m.body),
	}
}

// again signs the components again, as a careless or hostile sender might: components are as in the header, such
// as "content-type";sf, and change changes the serialised parameters of the signature.
func (m *message) again(components []string, change func(params string) string) {
	m.sign()
	_, params, _ := strings.Cut(m.headers["signature-input"], ")")
	if change != nil {
		params = change(params)
	}
	input := "(" + strings.Join(components, " ") + ")" + params
	var base strings.Builder
	for _, c := range components {
		fmt.Fprintf(&base, "%s: %s\n", c, m.value(strings.Trim(strings.SplitN(c, ";", 2)[0], `"`)))
	}
	fmt.Fprintf(&base, "\"@signature-params\": %s", input)
	m.base = []byte(base.String())
	signed, err := messageKey(m.t, m.key).Sign(m.base)
	if err != nil {
		m.t.Fatal(err)
	}
	m.headers["signature-input"] = "webhook=" + input
	m.headers["signature"] = "webhook=" + bytesOf(signed)
}

func (m *message) value(component string) string {
	switch component {
	case "@method":
		return m.method
	case "@target-uri":
		return m.signed
	case "@authority":
		return strings.TrimPrefix(origin, "https://")
	case "@path":
		return path
	}
	return m.headers[strings.ToLower(component)]
}

// covered are the components that the daemon covers.
func covered() []string {
	return []string{
		`"@method"`, `"@target-uri"`, `"content-digest"`, `"content-type"`, `"webhook-id"`, `"webhook-timestamp"`, `"webhook-sequence"`,
		`"webhook-previous"`,
	}
}

// without are the components but one.
func without(component string) []string {
	return slices.DeleteFunc(covered(), func(c string) bool { return c == `"`+component+`"` })
}

// instead are the components with another in the place of one.
func instead(component, other string) []string {
	all := covered()
	all[slices.Index(all, `"`+component+`"`)] = other
	return all
}

func bytesOf(raw []byte) string { return ":" + base64.StdEncoding.EncodeToString(raw) + ":" }

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha-256=" + bytesOf(sum[:])
}

func digest512Of(text string) string {
	sum := sha512.Sum512([]byte(text))
	return "sha-512=" + bytesOf(sum[:])
}
