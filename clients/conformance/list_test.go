package conformance_test

import (
	"crypto"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"spendhook/internal/httpsig"
)

// collection collects cases.
type collection struct {
	t     *testing.T
	cases []vector
}

func vectors(t *testing.T) []vector {
	t.Helper()
	c := &collection{t: t}
	c.standard()
	c.timestamps()
	c.asymmetric()
	c.messages()
	c.refusedMessages()
	c.refusedParameters()
	c.both()
	return c.cases
}

func (c *collection) add(name string, valid bool, m *message) {
	v := m.vector(name)
	v.Valid = valid
	c.cases = append(c.cases, v)
}

// standardCase adds a case of a v1 signature. before changes the message before it is signed, after its headers
// and its receiver. Both may be nil.
func (c *collection) standardCase(name string, valid bool, before, after func(*message)) {
	c.changed(name, valid, newStandard(), before, after)
}

func (c *collection) messageCase(name string, valid bool, before, after func(*message)) {
	c.t.Helper()
	c.changed(name, valid, newMessage(c.t), before, after)
}

func (c *collection) changed(name string, valid bool, m *message, before, after func(*message)) {
	if before != nil {
		before(m)
	}
	m.sign()
	if after != nil {
		after(m)
	}
	c.add(name, valid, m)
}

func set(header, value string) func(*message) {
	return func(m *message) { m.headers[header] = value }
}

func remove(header string) func(*message) {
	return func(m *message) { delete(m.headers, header) }
}

func replace(header, old, by string) func(*message) {
	return func(m *message) {
		if !strings.Contains(m.headers[header], old) {
			panic(header + " has no " + old)
		}
		m.headers[header] = strings.Replace(m.headers[header], old, by, 1)
	}
}

func (c *collection) standard() {
	other := signText(secondSecret, "another message")
	c.standardCase("v1 valid", true, nil, nil)
	c.standardCase("v1 second secret valid", true, func(m *message) { m.secrets = []string{secondSecret, firstSecret} }, nil)
	c.standardCase("v1 two signatures, first valid", true, nil, func(m *message) { m.headers["webhook-signature"] += " " + other })
	c.standardCase("v1 two signatures, second valid", true, nil, func(m *message) {
		m.headers["webhook-signature"] = other + " " + m.headers["webhook-signature"]
	})
	c.standardCase("v1 signed with both secrets of a rotation", true, func(m *message) { m.signing = []string{secondSecret, firstSecret} }, nil)
	c.standardCase("v1 beside a signature of an unknown version", true, nil, func(m *message) {
		m.headers["webhook-signature"] = "v9,abc v2 ,, " + m.headers["webhook-signature"]
	})
	c.standardCase("v1 beside a v1a signature", true, func(m *message) { m.v1a = firstKey }, nil)
	c.standardCase("v1 secret without whsec_", true, func(m *message) { m.secrets = []string{strings.TrimPrefix(firstSecret, "whsec_")} }, nil)
	c.standardCase("v1 empty body", true, func(m *message) { m.body = "" }, nil)
	c.standardCase("v1 unicode body", true, func(m *message) { m.body = `{"name":"Zoë 🦀 �  é"}` }, nil)
	c.standardCase("v1 body that is not UTF-8", true, func(m *message) { m.body = "\xff\xfe\x00\xc3(\xed\xa0\x80\r\n" }, nil)
	c.standardCase("v1 body of 16 KiB", true, func(m *message) { m.body = strings.Repeat("0123456789abcdef", 1024) }, nil)
	c.standardCase("v1 without webhook-sequence", true, func(m *message) { m.sequence = "" }, nil)
	c.standardCase("v1 changed webhook-sequence", true, nil, set("webhook-sequence", "4712")) // not covered by it
	c.standardCase("v1 without webhook-previous", true, func(m *message) { m.previous = "" }, nil)
	c.standardCase("v1 wrong secret", false, nil, func(m *message) { m.secrets = []string{secondSecret} })
	c.standardCase("v1 changed body", false, nil, func(m *message) { m.body += " " })
	c.standardCase("v1 changed id", false, nil, set("webhook-id", "pay-4712"))
	c.standardCase("v1 changed timestamp", false, nil, set("webhook-timestamp", strconv.Itoa(now+1)))
	c.standardCase("v1 part of the id moved into the timestamp", false, func(m *message) { m.id = "pay.4711" }, func(m *message) {
		m.headers["webhook-id"], m.headers["webhook-timestamp"] = "pay", "4711."+strconv.Itoa(now)
	})
	c.standardCase("v1 signature of an unknown version only", false, nil, replace("webhook-signature", "v1,", "v2,"))
	c.standardCase("v1 signature named v1a", false, nil, replace("webhook-signature", "v1,", "v1a,"))
	c.standardCase("v1 signature cut short", false, nil, func(m *message) {
		m.headers["webhook-signature"] = m.headers["webhook-signature"][:20]
	})
	c.standardCase("v1 signature without a version", false, nil, replace("webhook-signature", "v1,", ""))
	c.standardCase("v1 empty signature", false, nil, set("webhook-signature", "v1,"))
	c.standardCase("v1 huge signature header", false, nil, set("webhook-signature", strings.Repeat(other+" ", 300)))
	for _, header := range []string{"webhook-id", "webhook-timestamp", "webhook-signature"} {
		c.standardCase("v1 without "+header, false, nil, remove(header))
		c.standardCase("v1 empty "+header, false, emptied(header), nil)
	}
	c.standardCase("v1 without headers", false, nil, func(m *message) { clear(m.headers) })
}

// emptied is a message whose header was empty when it was signed.
func emptied(header string) func(*message) {
	return func(m *message) {
		switch header {
		case "webhook-id":
			m.id = ""
		case "webhook-timestamp":
			m.timestamp = ""
		default:
			m.sign()
			m.headers[header] = ""
		}
	}
}

func (c *collection) timestamps() {
	at := func(valid bool, texts ...string) {
		for _, text := range texts {
			name := text
			if len(name) > 20 {
				name = fmt.Sprintf("of %d digits", len(text))
			}
			c.standardCase("v1 timestamp "+name, valid, func(m *message) { m.timestamp = text }, nil)
		}
	}
	at(true, strconv.Itoa(now-300), strconv.Itoa(now+300))
	at(false, strconv.Itoa(now-301), strconv.Itoa(now+301), "0", "1795167000000", strings.Repeat("9", 19), strings.Repeat("9", 400))
	at(false, "2026-11-20T09:30:00Z", "1795167000.0", "1.795167e9", "0x6B001318", "NaN", "+1795167000", "-1795167000")
	at(false, " 1795167000", "1795167000 ", "1795 167000", "1_795_167_000", "179516700²")
}

func (c *collection) asymmetric() {
	v1a := func(name string, valid bool, before, after func(*message)) {
		c.standardCase(name, valid, func(m *message) {
			m.secrets, m.v1a, m.keys = nil, firstKey, published(c.t, firstKey)
			if before != nil {
				before(m)
			}
		}, after)
	}
	v1a("v1a valid", true, nil, nil)
	v1a("v1a second key valid", true, func(m *message) { m.keys = published(c.t, secondKey, firstKey) }, nil)
	v1a("v1a first of two keys valid", true, func(m *message) { m.keys, m.v1a = published(c.t, secondKey, firstKey), secondKey }, nil)
	v1a("v1a keys of other types beside", true, func(m *message) {
		m.keys = &keySet{append([]any{rsa}, published(c.t, ecdsaKey, firstKey).Keys...)}
	}, nil)
	v1a("v1a two signatures, second valid", true, func(m *message) { m.v1a = unknownKey }, func(m *message) {
		m.headers["webhook-signature"] += " " + strings.Fields(newV1a().headers["webhook-signature"])[1]
	})
	v1a("v1a secrets and keys", true, func(m *message) { m.secrets = []string{firstSecret} }, nil)
	v1a("v1a body that is not UTF-8", true, func(m *message) { m.body = "\xff\xfe\x00" }, nil)
	v1a("v1a unknown key", false, func(m *message) { m.v1a = unknownKey }, nil)
	v1a("v1a no keys", false, func(m *message) { m.keys = &keySet{[]any{}} }, nil)
	v1a("v1a keys of other types only", false, func(m *message) { m.keys = published(c.t, ecdsaKey) }, nil)
	v1a("v1a changed body", false, nil, func(m *message) { m.body += " " })
	v1a("v1a changed id", false, nil, set("webhook-id", "pay-4712"))
	v1a("v1a 301 s old", false, func(m *message) { m.timestamp = strconv.Itoa(now - 301) }, nil)
	v1a("v1a v1 signature only", false, func(m *message) { m.v1a = nil }, nil)
	v1a("v1a signature cut short", false, nil, func(m *message) {
		m.headers["webhook-signature"] = strings.TrimSuffix(m.headers["webhook-signature"], "==")[:110]
	})
	v1a("v1a signature that is not base64", false, nil, set("webhook-signature", "v1a,###"))
	v1a("v1a secrets and keys, v1 wrong", false, func(m *message) { m.secrets = []string{secondSecret} }, nil)
	v1a("v1a secrets and keys, v1a unknown", false, func(m *message) { m.secrets, m.v1a = []string{firstSecret}, unknownKey }, nil)
	v1a("v1a secrets and keys, v1a missing", false, func(m *message) { m.secrets, m.v1a = []string{firstSecret}, nil }, nil)
}

func newV1a() *message {
	m := newStandard()
	m.v1a = firstKey
	return m.sign()
}

// rsa is a key of a type that Spendhook does not use.
var rsa = map[string]string{"kty": "RSA", "kid": "rsa", "use": "sig", "alg": "RS256", "n": "sXchDaQebHnPiGvyDOAT4saGEUetSyo9MKLOoWFsueri23bOdgWp4Dy1Wl", "e": "AQAB"}

func (c *collection) messages() {
	target := func(origin, path string) func(*message) {
		return func(m *message) { m.origin, m.target, m.signed = origin, path, origin+path }
	}
	for _, key := range []struct {
		name    string
		private crypto.Signer
	}{{"ed25519", firstKey}, {"ecdsa-p256-sha256", ecdsaKey}} {
		with := func(change func(*message)) func(*message) {
			return func(m *message) {
				m.key = key.private
				if change != nil {
					change(m)
				}
			}
		}
		c.messageCase("rfc9421 "+key.name+" valid", true, with(nil), nil)
		c.messageCase("rfc9421 "+key.name+" without webhook-sequence and webhook-previous", true, with(func(m *message) { m.sequence, m.previous = "", "" }), nil)
		c.messageCase("rfc9421 "+key.name+" without webhook-previous", true, with(func(m *message) { m.previous = "" }), nil)
		c.messageCase("rfc9421 "+key.name+" URL with query and percent-encoding", true,
			with(target(origin, "/hooks/caf%C3%A9/%2f?a=1&b=%2F%20x&c=a+b&&d")), nil)
	}
	c.messageCase("rfc9421 two keys of a kind, ed25519", true, func(m *message) { m.keys, m.key = published(c.t, firstKey, secondKey, ecdsaKey), secondKey }, nil)
	c.messageCase("rfc9421 two keys of a kind, ecdsa-p256-sha256", true, func(m *message) { m.keys, m.key = published(c.t, firstKey, ecdsaKey, ecdsaSecond), ecdsaSecond }, nil)
	c.messageCase("rfc9421 keys of other types beside", true, func(m *message) { m.keys.Keys = append([]any{rsa}, m.keys.Keys...) }, nil)
	c.messageCase("rfc9421 beside a webhook-signature of an unknown secret", true, func(m *message) { m.signing = []string{secondSecret} }, nil)
	c.messageCase("rfc9421 URL of the root", true, target(origin, "/?tenant=a"), nil)
	c.messageCase("rfc9421 URL with an empty query", true, target(origin, "/hooks?"), nil)
	c.messageCase("rfc9421 origin with a port", true, target("https://ledger.example.com:8443", path), nil)
	c.messageCase("rfc9421 origin with the default port", true, nil, func(m *message) { m.origin = origin + ":443" })
	c.messageCase("rfc9421 origin in upper case", true, nil, func(m *message) { m.origin = "HTTPS://Ledger.Example.COM" })
	c.messageCase("rfc9421 origin with a path", true, func(m *message) { m.origin, m.signed = origin+"/from/proxy", origin+"/from/proxy"+path }, nil)
	c.messageCase("rfc9421 http", true, target("http://127.0.0.1:3000", path), nil)
	c.messageCase("rfc9421 empty body", true, func(m *message) { m.body = "" }, nil)
	c.messageCase("rfc9421 body that is not UTF-8", true, func(m *message) { m.body = "\xff\xfe\x00" }, nil)
	c.messageCase("rfc9421 another label", true, nil, func(m *message) {
		replace("signature-input", "webhook=", "sig1=")(m)
		replace("signature", "webhook=", "sig1=")(m)
	})
	c.messageCase("rfc9421 a signature with another tag beside", true, nil, func(m *message) {
		m.headers["signature-input"] = `proxy=("@authority");created=1;tag="proxy", ` + m.headers["signature-input"]
		m.headers["signature"] = "proxy=:AAAA:, " + m.headers["signature"]
	})
	c.messageCase("rfc9421 components in another order, with one more", true, func(m *message) { m.sign().headers["user-agent"] = "spendhook/1" }, func(m *message) {
		backwards := covered()
		slices.Reverse(backwards)
		m.again(append(backwards, `"user-agent"`), nil)
	})
	c.messageCase("rfc9421 a parameter more", true, nil, func(m *message) {
		m.again(covered(), func(params string) string { return params + `;nonce="a \"quoted\" \\ one"` })
	})
	c.messageCase("rfc9421 sha-512 beside", true, nil, digest(digestOf(body)+", "+digest512Of(body)))
	c.messageCase("rfc9421 digest of an unknown algorithm beside", true, nil, digest("md5=:AAAA:, "+digestOf(body)))
	c.messageCase("rfc9421 created 60 s from now", true, func(m *message) { m.created, m.timestamp = now+60, strconv.Itoa(now+60) }, nil)
	c.messageCase("rfc9421 expired 60 s ago", true, func(m *message) { m.created, m.timestamp = now-360, strconv.Itoa(now-360) }, nil)
	c.messageCase("rfc9421 timestamp 60 s before created", true, func(m *message) { m.timestamp = strconv.Itoa(now - 60) }, nil)
}

// digest signs the message with another Content-Digest.
func digest(value string) func(*message) {
	return func(m *message) {
		m.headers["content-digest"] = value
		m.again(covered(), nil)
	}
}

func (c *collection) refusedMessages() {
	refuse := func(name string, before, after func(*message)) {
		c.t.Helper()
		c.messageCase("rfc9421 "+name, false, before, after)
	}
	cover := func(components ...string) func(*message) {
		return func(m *message) { m.again(components, nil) }
	}
	refuse("body changed, digest unchanged", nil, func(m *message) { m.body += " " })
	refuse("body and digest changed", nil, func(m *message) {
		m.body += " "
		m.headers["content-digest"] = digestOf(m.body)
	})
	refuse("digest changed", nil, set("content-digest", digestOf("")))
	refuse("digest missing", nil, remove("content-digest"))
	refuse("digest missing, not covered", nil, func(m *message) {
		delete(m.headers, "content-digest")
		m.again(without("content-digest"), nil)
	})
	refuse("signed digest of another body", nil, digest(digestOf("")))
	refuse("signed digest without sha-256", nil, digest(digest512Of(body)))
	refuse("signed digest whose sha-512 differs", nil, digest(digestOf(body)+", "+digest512Of("")))
	refuse("signed digest that is a string", nil, digest(strings.ReplaceAll(strings.Replace(digestOf(body), "=:", `="`, 1), "=:", `="`)))
	refuse("signed digest that is garbage", nil, digest(digestOf(body)+", ???"))
	refuse("signed digest with two sha-256, the last wrong", nil, digest(digestOf(body)+", "+digestOf("")))
	refuse("method PUT", nil, func(m *message) { m.method = "PUT" })
	refuse("method in lower case", nil, func(m *message) { m.method = "post" })
	refuse("URL that continues the host of the origin", func(m *message) { m.target, m.signed = ".example.net"+path, origin+".example.net"+path }, nil)
	refuse("another origin", nil, func(m *message) { m.origin = "https://other.example.com" })
	refuse("origin http", nil, func(m *message) { m.origin = "http://ledger.example.com" })
	refuse("origin with another port", nil, func(m *message) { m.origin = origin + ":8443" })
	refuse("another path", nil, func(m *message) { m.target += "/" })
	refuse("query added", nil, func(m *message) { m.target += "?a=1" })
	refuse("query changed", func(m *message) { m.target, m.signed = path+"?a=1&b=2", origin+path+"?a=1&b=2" }, func(m *message) { m.target = path + "?b=2&a=1" })
	refuse("percent-encoding changed", func(m *message) { m.target, m.signed = "/a%2Fb", origin+"/a%2Fb" }, func(m *message) { m.target = "/a%2fb" })
	refuse("id changed", nil, set("webhook-id", "pay-4712"))
	refuse("timestamp changed", nil, set("webhook-timestamp", strconv.Itoa(now+1)))
	refuse("content type changed", nil, set("content-type", "text/plain"))
	refuse("sequence changed", nil, set("webhook-sequence", "1"))
	refuse("sequence removed", nil, remove("webhook-sequence"))
	refuse("sequence present, not covered", nil, cover(without("webhook-sequence")...))
	refuse("previous changed", nil, set("webhook-previous", "1"))
	refuse("previous removed", nil, remove("webhook-previous"))
	refuse("previous present, not covered", nil, cover(without("webhook-previous")...))
	refuse("previous added", func(m *message) { m.previous = "" }, set("webhook-previous", "4708"))
	refuse("sequence added", func(m *message) { m.sequence = "" }, set("webhook-sequence", "4711"))
	for _, name := range []string{"@method", "@target-uri", "content-digest", "content-type", "webhook-id", "webhook-timestamp"} {
		refuse("component "+name+" not covered", nil, cover(without(name)...))
	}
	refuse("no component covered", nil, cover())
	refuse("component covered twice", nil, cover(append(covered(), `"content-type"`)...))
	refuse("component that is missing", nil, cover(append(covered(), `"x-missing"`)...))
	refuse("component in upper case", nil, cover(instead("content-type", `"Content-Type"`)...))
	refuse("component that is a token", nil, cover(instead("content-type", `content-type`)...))
	refuse("component @path beside", nil, cover(append(covered(), `"@path"`)...))
	refuse("component @authority for @target-uri", nil, cover(instead("@target-uri", `"@authority"`)...))
	for _, parameter := range []string{"req", "sf", `key="sha-256"`, "bs", "tr", "x=1"} {
		refuse("component with ;"+parameter, nil, cover(instead("content-digest", `"content-digest";`+parameter)...))
	}
	refuse("@method with ;req", nil, cover(instead("@method", `"@method";req`)...))
	refuse("no signature", nil, func(m *message) {
		delete(m.headers, "signature")
		delete(m.headers, "signature-input")
	})
	refuse("no signature header", nil, remove("signature"))
	refuse("no signature-input", nil, remove("signature-input"))
	refuse("without headers", nil, func(m *message) { clear(m.headers) })
	refuse("duplicate label, the last for another message", nil, func(m *message) {
		m.headers["signature-input"] += ", " + strings.Replace(m.headers["signature-input"], `"@method" `, "", 1)
	})
	refuse("duplicate label in the signature, the last wrong", nil, func(m *message) { m.headers["signature"] += ", webhook=" + bytesOf(make([]byte, 64)) })
	refuse("two signatures with the tag", nil, func(m *message) {
		m.headers["signature-input"] += ", b" + strings.TrimPrefix(m.headers["signature-input"], "webhook")
		m.headers["signature"] += ", b" + strings.TrimPrefix(m.headers["signature"], "webhook")
	})
	refuse("signature of another label", nil, replace("signature", "webhook=", "other="))
	refuse("signature garbage", nil, set("signature", "%%% garbage"))
	refuse("signature-input garbage", nil, replace("signature-input", ")", ""))
	refuse("signature-input that is not a list", nil, set("signature-input", `webhook="x";tag="webhook"`))
	refuse("garbage after the signature-input", nil, func(m *message) { m.headers["signature-input"] += ", =" })
	refuse("garbage after the signature", nil, func(m *message) { m.headers["signature"] += ",," })
	refuse("signature that is a string", nil, func(m *message) {
		m.headers["signature"] = `webhook="` + strings.Trim(strings.TrimPrefix(m.headers["signature"], "webhook="), ":") + `"`
	})
	refuse("signature that is not base64", nil, set("signature", "webhook=:###:"))
	refuse("signature of 63 bytes", nil, set("signature", "webhook="+bytesOf(make([]byte, 63))))
	refuse("signature empty", nil, set("signature", "webhook=::"))
	refuse("huge signature", nil, set("signature", "webhook=:"+strings.Repeat("A", 12000)+":"))
	refuse("huge signature-input", nil, set("signature-input", "webhook=("+strings.Repeat(`"content-type";sf `, 600)+")"))
	refuse("huge signature-input of open lists", nil, set("signature-input", strings.Repeat("a=(", 4000)))
	refuse("huge digest", nil, set("content-digest", strings.Repeat("sha-256=:AAAA:, ", 700)+digestOf(body)))
	refuse("ecdsa-p256-sha256 signature in DER", func(m *message) { m.key = ecdsaKey }, derEncoded)
	refuse("ecdsa-p256-sha256 signature of zeros", func(m *message) { m.key = ecdsaKey }, set("signature", "webhook="+bytesOf(make([]byte, 64))))
	refuse("ed25519 signature of zeros", nil, set("signature", "webhook="+bytesOf(make([]byte, 64))))
}

// derEncoded signs an ECDSA message with a valid signature in the encoding of most libraries.
func derEncoded(m *message) {
	key := messageKey(m.t, m.key).(repeatable)
	m.again(covered(), nil)
	der, err := key.der(m.base)
	if err != nil {
		m.t.Fatal(err)
	}
	m.headers["signature"] = "webhook=" + bytesOf(der)
}

func (c *collection) refusedParameters() {
	changed := func(name, old, by string) {
		c.messageCase("rfc9421 "+name, false, nil, func(m *message) {
			m.again(covered(), func(params string) string {
				if !strings.Contains(params, old) {
					panic(params + " has no " + old)
				}
				return strings.Replace(params, old, by, 1)
			})
		})
	}
	created, expires := fmt.Sprintf(";created=%d", now), fmt.Sprintf(";expires=%d", now+300)
	changed("tag other than webhook", `tag="webhook"`, `tag="other"`)
	changed("tag that is a token", `tag="webhook"`, `tag=webhook`)
	changed("tag missing", `;tag="webhook"`, ``)
	changed("created missing", created, "")
	changed("created that is a string", created, fmt.Sprintf(";created=%q", strconv.Itoa(now)))
	changed("created that is a decimal", created, created+".0")
	changed("created huge", created, ";created=999999999999999")
	changed("expires missing", expires, "")
	changed("expires before now", expires, fmt.Sprintf(";expires=%d", now-61))
	changed("alg missing", `;alg="ed25519"`, "")
	changed("alg that differs from the key's", `alg="ed25519"`, `alg="ecdsa-p256-sha256"`)
	changed("alg that is unknown", `alg="ed25519"`, `alg="hmac-sha256"`)
	kid := published(c.t, firstKey).Keys[0].(httpsig.JWK).Kid
	changed("keyid missing", `;keyid="`+kid+`"`, "")
	changed("keyid empty", `keyid="`+kid+`"`, `keyid=""`)
	changed("keyid of the key of another type", kid, published(c.t, ecdsaKey).Keys[0].(httpsig.JWK).Kid)
	c.messageCase("rfc9421 keyid unknown", false, func(m *message) { m.key = unknownKey }, nil)
	c.messageCase("rfc9421 no keys", false, func(m *message) { m.keys = &keySet{[]any{}} }, nil)
	c.messageCase("rfc9421 keyid of a known key, signed by another", false, func(m *message) { m.key = unknownKey }, func(m *message) {
		m.again(covered(), func(params string) string {
			return strings.Replace(params, published(c.t, unknownKey).Keys[0].(httpsig.JWK).Kid, kid, 1)
		})
	})
	c.messageCase("rfc9421 key for encryption", false, func(m *message) {
		jwk := m.keys.Keys[0].(httpsig.JWK)
		jwk.Use = "enc"
		m.keys = &keySet{[]any{jwk}}
	}, nil)
	c.messageCase("rfc9421 parameters changed", false, nil, replace("signature-input", expires, fmt.Sprintf(";expires=%d", now+301)))
	c.messageCase("rfc9421 expired 61 s ago", false, func(m *message) { m.created, m.timestamp = now-361, strconv.Itoa(now-361) }, nil)
	c.messageCase("rfc9421 created 61 s from now", false, func(m *message) { m.created, m.timestamp = now+61, strconv.Itoa(now+61) }, nil)
	c.messageCase("rfc9421 timestamp 61 s before created", false, func(m *message) { m.timestamp = strconv.Itoa(now - 61) }, nil)
	c.messageCase("rfc9421 timestamp that is not decimal", false, func(m *message) { m.timestamp = "now" }, nil)
}

func (c *collection) both() {
	both := func(name string, valid bool, before, after func(*message)) {
		c.t.Helper()
		c.changed("rfc9421 and v1 "+name, valid, newBoth(c.t), before, after)
	}
	both("valid", true, nil, nil)
	both("valid, ecdsa-p256-sha256", true, func(m *message) { m.key = ecdsaKey }, nil)
	both("v1 with another secret", false, nil, func(m *message) { m.secrets = []string{secondSecret} })
	both("v1 missing", false, nil, remove("webhook-signature"))
	both("rfc9421 missing", false, nil, func(m *message) {
		for header := range maps.Keys(m.headers) {
			if !strings.HasPrefix(header, "webhook-") {
				delete(m.headers, header)
			}
		}
	})
	both("rfc9421 signed by an unknown key", false, func(m *message) { m.key = unknownKey }, nil)
	both("timestamp 301 s old", false, func(m *message) { m.created, m.timestamp = now-301, strconv.Itoa(now-301) }, nil)
	both("timestamp 300 s old", true, func(m *message) { m.created, m.timestamp = now-300, strconv.Itoa(now-300) }, nil)
}
