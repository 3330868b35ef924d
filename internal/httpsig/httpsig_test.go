package httpsig

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"pgregory.net/rapid"
)

const (
	createdAt = 1795167000
	lifetime  = 5 * time.Minute
	tolerance = time.Minute
	body      = `{"id":"pay-4711"}`
	target    = "https://ledger.example.com/hooks?a=%2F"
)

func ed25519KeyOf(tb testing.TB, seed byte) Key {
	tb.Helper()
	key, err := NewKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize)))
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func es256Key1(tb testing.TB) *es256Key {
	tb.Helper()
	private, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), bytes.Repeat([]byte{1}, 32))
	if err != nil {
		tb.Fatal(err)
	}
	key, err := NewKey(private)
	if err != nil {
		tb.Fatal(err)
	}
	return key.(*es256Key)
}

func jwkOf(tb testing.TB, key Key) JWK {
	tb.Helper()
	var jwk JWK
	var err error
	switch key := key.(type) {
	case *ed25519Key:
		jwk, err = PublicJWK(key.private.Public())
	case *es256Key:
		jwk, err = PublicJWK(&key.private.PublicKey)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return jwk
}

// request is what a receiver has of a request.
type request struct {
	method, uri string
	header      http.Header
	body        []byte
}

func (r *request) verify(keys ...JWK) error {
	return Verify(r.header, r.method, r.uri, r.body, keys, tolerance, time.Unix(createdAt, 0))
}

func message(tb testing.TB) Message {
	tb.Helper()
	u, err := url.Parse(target)
	if err != nil {
		tb.Fatal(err)
	}
	return Message{
		Method: http.MethodPost, URL: u, ContentType: "application/json", Body: []byte(body),
		ID: "pay-4711", Timestamp: strconv.Itoa(createdAt), Sequence: "4711", Previous: "4708",
	}
}

// sent signs a message and makes the request of it.
func sent(tb testing.TB, key Key, m Message) request {
	tb.Helper()
	h, err := Sign(key, m, time.Unix(createdAt, 0), lifetime)
	if err != nil {
		tb.Fatal(err)
	}
	header := http.Header{}
	header.Set(HeaderDigest, h.Digest)
	header.Set(HeaderInput, h.Input)
	header.Set(HeaderSignature, h.Signature)
	header.Set("Content-Type", m.ContentType)
	header.Set("webhook-id", m.ID)
	header.Set("webhook-timestamp", m.Timestamp)
	if m.Sequence != "" {
		header.Set("webhook-sequence", m.Sequence)
	}
	if m.Previous != "" {
		header.Set("webhook-previous", m.Previous)
	}
	return request{m.Method, m.URL.String(), header, m.Body}
}

// The keys of RFC 9421 appendix B.1.
const (
	rfcEd25519Seed = "n4Ni-HpISpVObnQMW0wOhCKROaIKqKtW_2ZYb2p9KcU" // test-key-ed25519
	rfcEd25519X    = "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs"
	rfcP256X       = "qIVYZVLCrPZHGHjP17CTW0_-D9Lfw0EkjqF7xB4FivA" // test-key-ecc-p256
	rfcP256Y       = "Mc4nN9LTDOBhfoUeg8Ye9WedFRhnZXZJA12Qp0zZ6F0"
)

// baseOf builds the signature base of a signature in the notation of the RFC.
func baseOf(t *testing.T, input string, values ...component) []byte {
	t.Helper()
	d, err := httpsfv.UnmarshalDictionary([]string{input})
	if err != nil {
		t.Fatal(err)
	}
	member, _ := d.Get(d.Names()[0])
	params, err := httpsfv.Marshal(member.(httpsfv.InnerList))
	if err != nil {
		t.Fatal(err)
	}
	return signatureBase(values, params)
}

// What Sign writes by itself is what the library for structured fields writes.
func TestTheSignatureInputIsAStructuredField(t *testing.T) {
	t.Parallel()
	for _, sequence := range []string{"", "4711"} {
		for _, key := range []Key{ed25519KeyOf(t, 1), es256Key1(t)} {
			m := message(t)
			m.Sequence = sequence
			covered, err := m.components("d")
			if err != nil {
				t.Fatal(err)
			}
			list := httpsfv.InnerList{Params: httpsfv.NewParams()}
			for _, c := range covered {
				list.Items = append(list.Items, httpsfv.NewItem(c.name))
			}
			list.Params.Add("created", int64(createdAt))
			list.Params.Add("expires", int64(createdAt+300))
			list.Params.Add("keyid", key.ID())
			list.Params.Add("alg", key.Algorithm())
			list.Params.Add("tag", "webhook")
			want, err := httpsfv.Marshal(list)
			if got := signatureInput(covered, createdAt, createdAt+300, key); err != nil || got != want {
				t.Errorf("%s, %v, want %s", got, err, want)
			}
		}
	}
}

// RFC 9421 appendix B.2.6.
func TestTheRFCsEd25519VectorReproduces(t *testing.T) {
	t.Parallel()
	base := baseOf(t, `sig-b26=("date" "@method" "@path" "@authority" "content-type" "content-length");created=1618884473;keyid="test-key-ed25519"`,
		component{"date", "Tue, 20 Apr 2021 02:07:55 GMT"}, component{"@method", "POST"}, component{"@path", "/foo"},
		component{"@authority", "example.com"}, component{"content-type", "application/json"}, component{"content-length", "18"})
	wantBase := `"date": Tue, 20 Apr 2021 02:07:55 GMT
"@method": POST
"@path": /foo
"@authority": example.com
"content-type": application/json
"content-length": 18
"@signature-params": ("date" "@method" "@path" "@authority" "content-type" "content-length");created=1618884473;keyid="test-key-ed25519"`
	if string(base) != wantBase {
		t.Errorf("base = %s", base)
	}
	seed, err := base64.RawURLEncoding.DecodeString(rfcEd25519Seed)
	if err != nil {
		t.Fatal(err)
	}
	key, err := NewKey(ed25519.NewKeyFromSeed(seed))
	if err != nil {
		t.Fatal(err)
	}
	const want = "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw=="
	signature, err := key.Sign(base)
	if got := base64.StdEncoding.EncodeToString(signature); err != nil || got != want {
		t.Errorf("signature = %s, %v, want %s", got, err, want)
	}
	public, err := JWK{Kty: "OKP", Crv: "Ed25519", X: rfcEd25519X}.Public()
	if err != nil || !valid(public, base, signature) {
		t.Errorf("the signature is not valid: %v", err)
	}
}

// RFC 9421 appendix B.2.4.
func TestTheRFCsECDSAVectorVerifies(t *testing.T) {
	t.Parallel()
	base := baseOf(t, `sig-b24=("@status" "content-type" "content-digest" "content-length");created=1618884473;keyid="test-key-ecc-p256"`,
		component{"@status", "200"}, component{"content-type", "application/json"},
		component{"content-digest", "sha-512=:mEWXIS7MaLRuGgxOBdODa3xqM1XdEvxoYhvlCFJ41QJgJc4GTsPp29l5oGX69wWdXymyU0rjJuahq4l5aGgfLQ==:"},
		component{"content-length", "23"})
	signature, err := base64.StdEncoding.DecodeString("wNmSUAhwb5LxtOtOpNa6W5xj067m5hFrj0XQ4fvpaCLx0NKocgPquLgyahnzDnDAUy5eCdlYUEkLIj+32oiasw==")
	if err != nil {
		t.Fatal(err)
	}
	public, err := JWK{Kty: "EC", Crv: "P-256", X: rfcP256X, Y: rfcP256Y}.Public()
	if err != nil {
		t.Fatal(err)
	}
	if !valid(public, base, signature) {
		t.Error("the signature is not valid")
	}
	base[len(base)-1] ^= 1
	if valid(public, base, signature) {
		t.Error("the signature is valid for another base")
	}
}

// RFC 9530 appendices B.1 and D.
func TestTheRFCsDigestReproduces(t *testing.T) {
	t.Parallel()
	const text = "{\"hello\": \"world\"}\n"
	if got, want := contentDigest([]byte(text)), "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"; got != want {
		t.Errorf("digest = %s, want %s", got, want)
	}
	if err := checkDigest([]string{"sha-512=:YMAam51Jz/jOATT6/zvHrLVgOYTGFy1d6GJiOHTohq4yP+pgk4vf2aCsyRZOtw8MjkM7iw7yZ/WkppmM44T3qg==:", contentDigest([]byte(text))}, []byte(text)); err != nil {
		t.Errorf("with both: %v", err)
	}
}

func TestAMessageIsSignedAsDocumented(t *testing.T) {
	t.Parallel()
	key := ed25519KeyOf(t, 1)
	r := sent(t, key, message(t))
	components := `("@method" "@target-uri" "content-digest" "content-type" "webhook-id" "webhook-timestamp" "webhook-sequence" "webhook-previous")`
	params := `;created=1795167000;expires=1795167300;keyid="` + key.ID() + `";alg="ed25519";tag="webhook"`
	if got, want := r.header.Get(HeaderInput), "webhook="+components+params; got != want {
		t.Errorf("%s = %s, want %s", HeaderInput, got, want)
	}
	base := `"@method": POST
"@target-uri": https://ledger.example.com/hooks?a=%2F
"content-digest": ` + contentDigest([]byte(body)) + `
"content-type": application/json
"webhook-id": pay-4711
"webhook-timestamp": 1795167000
"webhook-sequence": 4711
"webhook-previous": 4708
"@signature-params": ` + components + params
	signature, _ := key.Sign([]byte(base))
	if got, want := r.header.Get(HeaderSignature), "webhook="+byteSequence(signature); got != want {
		t.Errorf("%s = %s, want %s", HeaderSignature, got, want)
	}

	m := message(t)
	m.Sequence, m.Previous = "", ""
	r = sent(t, key, m)
	if input := r.header.Get(HeaderInput); strings.Contains(input, componentSequence) || strings.Contains(input, componentPrevious) {
		t.Errorf("without a sequence: %s", input)
	}
	if err := r.verify(jwkOf(t, key)); err != nil {
		t.Errorf("without a sequence: %v", err)
	}
}

func TestSignRefusesWhatNoReceiverCanVerify(t *testing.T) {
	t.Parallel()
	key := ed25519KeyOf(t, 1)
	for name, change := range map[string]func(*Message){
		"no method":               func(m *Message) { m.Method = "" },
		"method with a space":     func(m *Message) { m.Method = "PO ST" },
		"no URL":                  func(m *Message) { m.URL = nil },
		"opaque URL":              func(m *Message) { m.URL = &url.URL{Scheme: "https", Opaque: "//a/b"} },
		"URL without a host":      func(m *Message) { m.URL = &url.URL{Scheme: "https", Path: "/"} },
		"other scheme":            func(m *Message) { m.URL = &url.URL{Scheme: "ftp", Host: "a", Path: "/"} },
		"path without slash":      func(m *Message) { m.URL = &url.URL{Scheme: "https", Host: "a", Path: "b"} },
		"query that is not ASCII": func(m *Message) { m.URL = &url.URL{Scheme: "https", Host: "a", RawQuery: "ü"} },
		"query with a line break": func(m *Message) { m.URL = &url.URL{Scheme: "https", Host: "a", RawQuery: "a\nb"} },
		"no content type":         func(m *Message) { m.ContentType = "" },
		"no id":                   func(m *Message) { m.ID = " " },
		"no timestamp":            func(m *Message) { m.Timestamp = "" },
		"line break":              func(m *Message) { m.ID = "a\n\"webhook-sequence\": 1" },
		"return":                  func(m *Message) { m.Sequence = "1\r2" },
		"id that is not ASCII":    func(m *Message) { m.ID = "ü" },
	} {
		m := message(t)
		change(&m)
		if h, err := Sign(key, m, time.Unix(createdAt, 0), lifetime); err == nil {
			t.Errorf("%s: signed: %+v", name, h)
		}
	}
	if _, err := Sign(key, message(t), time.Unix(createdAt, 0), time.Second-1); err == nil {
		t.Error("signed for no time")
	}
	for _, key := range []Key{&foreignKey{signature: make([]byte, 71)}, &foreignKey{err: errors.New("unreachable")}, &foreignKey{id: "ü", signature: make([]byte, 64)}} {
		if _, err := Sign(key, message(t), time.Unix(createdAt, 0), lifetime); err == nil {
			t.Errorf("signed with %+v", key)
		}
	}
}

// foreignKey lives in another system.
type foreignKey struct {
	id        string
	signature []byte
	err       error
}

func (k *foreignKey) ID() string                  { return k.id }
func (k *foreignKey) Algorithm() string           { return algES256 }
func (k *foreignKey) Sign([]byte) ([]byte, error) { return k.signature, k.err }

func TestVerifyAccepts(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*request){
		"it":                     func(*request) {},
		"a fragment":             func(r *request) { r.uri += "#a" },
		"a host in upper case":   func(r *request) { r.uri = strings.Replace(r.uri, "ledger", "LEDGER", 1) },
		"the default port":       func(r *request) { r.uri = strings.Replace(r.uri, ".com", ".com:443", 1) },
		"spaces around a value":  func(r *request) { r.header.Set("Content-Type", "\t application/json ") },
		"spaces around the time": func(r *request) { r.header.Set("webhook-timestamp", " 1795167000\t") },
		"another signature":      func(r *request) { r.add(`other=("@path");tag="other"`, "other=:AAAA:") },
		"a signature of any label": func(r *request) {
			r.replace(HeaderInput, "webhook=", "a=")
			r.replace(HeaderSignature, "webhook=", "a=")
		},
		"an input without meaning": func(r *request) { r.header.Add(HeaderInput, "x=1") },
		"a header not covered":     func(r *request) { r.header.Set("X-Other", "1") },
	} {
		for _, key := range []Key{ed25519KeyOf(t, 1), es256Key1(t)} {
			r := sent(t, key, message(t))
			change(&r)
			if err := r.verify(jwkOf(t, ed25519KeyOf(t, 2)), jwkOf(t, key)); err != nil {
				t.Errorf("%s, %s: %v", name, key.Algorithm(), err)
			}
		}
	}
}

func (r *request) add(input, signature string) {
	r.header.Add(HeaderInput, input)
	r.header.Add(HeaderSignature, signature)
}

func (r *request) replace(header, from, to string) {
	r.header.Set(header, strings.Replace(r.header.Get(header), from, to, 1))
}

// resigned signs with another list of components and parameters. It ignores the parameters of
// components.
func (r *request) resigned(key Key, input string) {
	d, err := httpsfv.UnmarshalDictionary([]string{input})
	if err != nil {
		panic(err)
	}
	member, _ := d.Get(label)
	list := member.(httpsfv.InnerList)
	var covered []component
	for _, item := range list.Items {
		name, _ := item.Value.(string)
		value := strings.Join(r.header.Values(name), ", ")
		switch name {
		case componentMethod:
			value = r.method
		case componentTargetURI:
			value = r.uri
		}
		covered = append(covered, component{name, value})
	}
	params, _ := httpsfv.Marshal(list)
	signature, _ := key.Sign(signatureBase(covered, params))
	r.header.Set(HeaderInput, input)
	r.header.Set(HeaderSignature, label+"="+byteSequence(signature))
}

func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	key, other, es256 := ed25519KeyOf(t, 1), ed25519KeyOf(t, 2), es256Key1(t)
	// sign makes a valid signature of an input that differs from that of Sign.
	sign := func(from, to string) func(*request) {
		return func(r *request) {
			input := r.header.Get(HeaderInput)
			if !strings.Contains(input, from) {
				panic(from)
			}
			r.resigned(key, strings.Replace(input, from, to, 1))
		}
	}
	header := func(name string, lines ...string) func(*request) {
		return func(r *request) { r.header[http.CanonicalHeaderKey(name)] = lines }
	}
	replace := func(name, from, to string) func(*request) {
		return func(r *request) { r.replace(name, from, to) }
	}
	digested := func(digest string) func(*request) {
		return func(r *request) {
			r.header.Set(HeaderDigest, digest)
			r.resigned(key, r.header.Get(HeaderInput))
		}
	}
	timed := func(timestamp string) func(*request) {
		return func(r *request) {
			r.header.Set("webhook-timestamp", timestamp)
			r.resigned(key, r.header.Get(HeaderInput))
		}
	}
	sha512Of := func(text string) string {
		sum := sha512.Sum512([]byte(text))
		return byteSequence(sum[:])
	}
	digest := contentDigest([]byte(body))
	nameless := jwkOf(t, key)
	nameless.Kid = ""
	for name, c := range map[string]struct {
		change func(*request)
		want   error
	}{
		"no headers":            {func(r *request) { r.header = http.Header{} }, errUnsigned},
		"no input":              {header(HeaderInput), errUnsigned},
		"another tag":           {sign(`tag="webhook"`, `tag="other"`), errUnsigned},
		"no tag":                {sign(`;tag="webhook"`, ``), errUnsigned},
		"a tag that is a token": {sign(`tag="webhook"`, `tag=webhook`), errUnsigned},
		"malformed input":       {header(HeaderInput, "webhook=("), errUnacceptable},
		"two with the tag": {func(r *request) {
			r.add(strings.Replace(r.header.Get(HeaderInput), label, "b", 1), strings.Replace(r.header.Get(HeaderSignature), label, "b", 1))
		}, errUnacceptable},
		"no signature":          {header(HeaderSignature), errUnacceptable},
		"malformed signature":   {header(HeaderSignature, "webhook=:"), errUnacceptable},
		"signature of another":  {replace(HeaderSignature, "webhook", "other"), errUnacceptable},
		"signature as a string": {header(HeaderSignature, `webhook="AAAA"`), errUnacceptable},
		"signature as a list":   {header(HeaderSignature, `webhook=(:AAAA:)`), errUnacceptable},
		"short signature":       {header(HeaderSignature, "webhook=:AAAA:"), errMismatch},

		"no created":          {sign(`created=1795167000;`, ``), errUnacceptable},
		"no expires":          {sign(`expires=1795167300;`, ``), errUnacceptable},
		"no keyid":            {sign(`keyid="`+key.ID()+`";`, ``), errUnacceptable},
		"no alg":              {sign(`alg="ed25519";`, ``), errUnacceptable},
		"created as decimal":  {sign(`created=1795167000`, `created=1795167000.5`), errUnacceptable},
		"expires as date":     {sign(`expires=1795167300`, `expires=@1795167300`), errUnacceptable},
		"keyid as token":      {sign(`keyid="`+key.ID()+`"`, `keyid=a`), errUnacceptable},
		"unknown key":         {func(r *request) { *r = sent(t, ed25519KeyOf(t, 3), message(t)) }, ErrUnknownKey},
		"empty keyid":         {sign(`keyid="`+key.ID()+`"`, `keyid=""`), ErrUnknownKey},
		"unusable key":        {sign(`keyid="`+key.ID()+`"`, `keyid="unusable"`), ErrUnknownKey},
		"alg of another type": {sign(`alg="ed25519"`, `alg="ecdsa-p256-sha256"`), errUnacceptable},
		"alg that is none":    {sign(`alg="ed25519"`, `alg="none"`), errUnacceptable},
		"keyid of another":    {sign(`keyid="`+key.ID()+`"`, `keyid="`+other.ID()+`"`), errMismatch},
		"key of another type": {sign(`keyid="`+key.ID()+`"`, `keyid="`+es256.ID()+`"`), errUnacceptable},

		"method not covered":    {sign(`"@method" `, ``), errUnacceptable},
		"target not covered":    {sign(`"@target-uri" `, ``), errUnacceptable},
		"digest not covered":    {sign(`"content-digest" `, ``), errUnacceptable},
		"type not covered":      {sign(`"content-type" `, ``), errUnacceptable},
		"id not covered":        {sign(`"webhook-id" `, ``), errUnacceptable},
		"timestamp not covered": {sign(`"webhook-timestamp" `, ``), errUnacceptable},
		"sequence not covered":  {sign(` "webhook-sequence"`, ``), errUnacceptable},
		"sequence missing":      {header("webhook-sequence"), errUnacceptable},
		"previous not covered":  {sign(` "webhook-previous"`, ``), errUnacceptable},
		"previous missing":      {header("webhook-previous"), errUnacceptable},
		"type missing":          {header("content-type"), errUnacceptable},
		"covered twice":         {sign(`"webhook-id"`, `"webhook-id" "webhook-id"`), errUnacceptable},
		"covered in upper case": {sign(`"webhook-id"`, `"Webhook-Id" "webhook-id"`), errUnacceptable},
		"covered as a token":    {sign(`"webhook-id"`, `webhook-id "webhook-id"`), errUnacceptable},
		"covered as a number":   {sign(`"webhook-id"`, `1 "webhook-id"`), errUnacceptable},
		"covers an empty name":  {sign(`"webhook-id"`, `"" "webhook-id"`), errUnacceptable},
		"covers what is no name": {func(r *request) {
			r.header["a: b"] = []string{"1"}
			sign(`"webhook-id"`, `"a: b" "webhook-id"`)(r)
		}, errUnacceptable},
		"covers what is missing":   {sign(`"webhook-id"`, `"x-other" "webhook-id"`), errUnacceptable},
		"another derived one":      {sign(`"webhook-id"`, `"@authority" "webhook-id"`), errUnacceptable},
		"of the parameters":        {sign(`"webhook-id"`, `"@signature-params" "webhook-id"`), errUnacceptable},
		"method of a response":     {sign(`"@method"`, `"@method";req`), errUnacceptable},
		"type serialised strictly": {sign(`"content-type"`, `"content-type";sf`), errUnacceptable},
		"type as bytes":            {sign(`"content-type"`, `"content-type";bs`), errUnacceptable},
		"type in trailers":         {sign(`"content-type"`, `"content-type";tr`), errUnacceptable},
		"member of the digest":     {sign(`"content-digest"`, `"content-digest";key="sha-256"`), errUnacceptable},

		"too early":             {sign(`created=1795167000`, `created=1795167061`), errTime},
		"too late":              {sign(`expires=1795167300`, `expires=1795166939`), errTime},
		"timestamp before":      {timed("1795166939"), errTime},
		"timestamp after":       {timed("1795167061"), errTime},
		"timestamp far after":   {timed("9223372036854775807"), errTime},
		"timestamp far before":  {timed("-9223372036854775808"), errTime},
		"timestamp no number":   {timed("now"), errUnacceptable},
		"timestamp of 2 values": {header("webhook-timestamp", "1795167000", "1795167000"), errUnacceptable},
		"created far before":    {sign(`created=1795167000`, `created=-999999999999999`), errTime},

		"another method":        {func(r *request) { r.method = "PUT" }, errMismatch},
		"method in lower case":  {func(r *request) { r.method = "post" }, errMismatch},
		"another host":          {func(r *request) { r.uri = "https://a.example/hooks?a=%2F" }, errMismatch},
		"another scheme":        {func(r *request) { r.uri = "http://ledger.example.com/hooks?a=%2F" }, errMismatch},
		"another port":          {func(r *request) { r.uri = "https://ledger.example.com:80/hooks?a=%2F" }, errMismatch},
		"another query":         {func(r *request) { r.uri = "https://ledger.example.com/hooks" }, errMismatch},
		"encoded otherwise":     {func(r *request) { r.uri = "https://ledger.example.com/hooks?a=/" }, errMismatch},
		"a path, not a URI":     {func(r *request) { r.uri = "/hooks?a=%2F" }, errUnacceptable},
		"another type":          {header("content-type", "text/plain"), errMismatch},
		"two types":             {header("content-type", "application/json", "text/plain"), errMismatch},
		"line break in a value": {header("webhook-id", "a\nb"), errUnacceptable},
		"value not ASCII":       {header("webhook-id", "\xff"), errUnacceptable},

		"another body":         {func(r *request) { r.body = []byte(body + " ") }, errMismatch},
		"no body":              {func(r *request) { r.body = nil }, errMismatch},
		"sha-512 alone":        {digested("sha-512=" + sha512Of(body)), errUnacceptable},
		"sha-512 of another":   {digested(digest + ", sha-512=" + sha512Of("")), errMismatch},
		"sha-512 as a string":  {digested(digest + `, sha-512="a"`), errUnacceptable},
		"sha-256 of another":   {digested(contentDigest(nil) + ", sha-512=" + sha512Of(body)), errMismatch},
		"sha-256 as a string":  {digested(`sha-256="a"`), errUnacceptable},
		"short sha-256":        {digested("sha-256=:AAAA:"), errMismatch},
		"malformed digest":     {digested("sha-256="), errUnacceptable},
		"unknown digest alone": {digested("md5=:AAAA:"), errUnacceptable},
	} {
		r := sent(t, key, message(t))
		c.change(&r)
		err := r.verify(jwkOf(t, es256), jwkOf(t, key), jwkOf(t, other), JWK{Kty: "RSA", Kid: "unusable"}, nameless)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	// The table's own signing must not be the reason.
	r := sent(t, key, message(t))
	sign(`"webhook-id"`, `"webhook-id"`)(&r)
	digested(digest + ", sha-512=" + sha512Of(body) + ", md5=:AAAA:")(&r)
	timed("1795166940")(&r)
	r.header[HeaderDigest] = []string{digest, " sha-512=" + sha512Of(body), "md5=:AAAA:\t"}
	if err := r.verify(jwkOf(t, key)); err != nil {
		t.Error(err)
	}
}

func TestTheTimesHoldWithinTheTolerance(t *testing.T) {
	t.Parallel()
	key := ed25519KeyOf(t, 1)
	r := sent(t, key, message(t))
	for _, c := range []struct {
		at   time.Time
		want error
	}{
		{time.Unix(createdAt, 0).Add(-tolerance - 1), errTime},
		{time.Unix(createdAt, 0).Add(-tolerance), nil},
		{time.Unix(createdAt, 0).Add(lifetime + tolerance), nil},
		{time.Unix(createdAt, 0).Add(lifetime + tolerance + 1), errTime},
	} {
		err := Verify(r.header, r.method, r.uri, r.body, []JWK{jwkOf(t, key)}, tolerance, c.at)
		if !errors.Is(err, c.want) {
			t.Errorf("at %v: %v, want %v", c.at, err, c.want)
		}
	}
}

// A changed byte of any covered part, of the signature or of its parameters makes the
// message invalid.
func TestNoByteCanBeChanged(t *testing.T) {
	t.Parallel()
	keys := []Key{ed25519KeyOf(t, 1), es256Key1(t)}
	jwks := []JWK{jwkOf(t, keys[0]), jwkOf(t, keys[1])}
	headers := []string{HeaderDigest, HeaderInput, HeaderSignature, "Content-Type", "Webhook-Id", "Webhook-Timestamp", "Webhook-Sequence", "Webhook-Previous"}
	rapid.Check(t, func(rt *rapid.T) {
		m := message(t)
		m.Body = rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(rt, "body")
		m.ID = rapid.StringMatching(`[A-Za-z0-9_-]{1,64}`).Draw(rt, "id")
		m.URL = &url.URL{Scheme: "https", Host: "a.example", Path: "/" + rapid.String().Draw(rt, "path")}
		r := sent(t, rapid.SampledFrom(keys).Draw(rt, "key"), m)
		if err := r.verify(jwks...); err != nil {
			rt.Fatal(err)
		}

		change := func(s string) string {
			changed := []byte(s)
			changed[rapid.IntRange(0, len(s)-1).Draw(rt, "index")] ^= rapid.ByteRange(1, 255).Draw(rt, "bits")
			return string(changed)
		}
		switch part := rapid.SampledFrom(append(headers, "method", "uri", "body")).Draw(rt, "part"); part {
		case "method":
			r.method = change(r.method)
		case "uri":
			uri := change(r.uri)
			if same, err := receivedURI(uri); err == nil && same == r.uri {
				rt.Skip("the same URI (RFC 9110 section 4.2.3)")
			}
			r.uri = uri
		case "body":
			r.body = []byte(change(string(r.body)))
		default:
			before := r.header.Get(part)
			r.header.Set(part, change(before))
			if part == HeaderSignature && sameBytes(before, r.header.Get(part)) {
				rt.Skip("the same signature: only padding bits differ (RFC 9651 section 4.2.7)")
			}
		}
		if err := r.verify(jwks...); err == nil {
			rt.Fatalf("accepted: %+v", r)
		}
	})
}

func sameBytes(a, b string) bool {
	one, _ := httpsfv.UnmarshalDictionary([]string{a})
	two, err := httpsfv.UnmarshalDictionary([]string{b})
	if err != nil {
		return false
	}
	x, _ := byteMember(one, label)
	y, err := byteMember(two, label)
	return err == nil && bytes.Equal(x, y)
}

func FuzzVerify(f *testing.F) {
	key := ed25519KeyOf(f, 1)
	keys := []JWK{jwkOf(f, key), jwkOf(f, es256Key1(f))}
	m := message(f)
	m.Previous = "" // not a parameter of the fuzzer
	signed := sent(f, key, m)
	get := signed.header.Get
	f.Add(signed.method, signed.uri, get(HeaderInput), get(HeaderSignature), get(HeaderDigest), get("Content-Type"), get("webhook-id"), get("webhook-timestamp"), get("webhook-sequence"), signed.body)
	f.Fuzz(func(t *testing.T, method, uri, input, signature, digest, contentType, id, timestamp, sequence string, content []byte) {
		header := http.Header{}
		for name, value := range map[string]string{
			HeaderInput: input, HeaderSignature: signature, HeaderDigest: digest, "Content-Type": contentType,
			"Webhook-Id": id, "Webhook-Timestamp": timestamp, "Webhook-Sequence": sequence,
		} {
			// The first line break of the fuzzer's text separates two headers of the name.
			header[name] = strings.SplitN(value, "\n", 2)
		}
		r := request{method, uri, header, content}
		err := r.verify(keys...)
		if err == nil {
			same, _ := receivedURI(uri)
			if method != signed.method || same != signed.uri || strings.Trim(id, " \t") != "pay-4711" || string(content) != body {
				t.Fatalf("forged: %+v", r)
			}
			return
		}
		for _, known := range []error{errUnsigned, errUnacceptable, ErrUnknownKey, errTime, errMismatch} {
			if errors.Is(err, known) {
				return
			}
		}
		t.Fatalf("an error of another kind: %v", err)
	})
}

func BenchmarkSign(b *testing.B) {
	m := message(b)
	m.Body = make([]byte, 1<<10)
	_, _ = rand.Read(m.Body)
	for _, key := range []Key{ed25519KeyOf(b, 1), es256Key1(b)} {
		b.Run(key.Algorithm(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Sign(key, m, time.Unix(createdAt, 0), lifetime); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
