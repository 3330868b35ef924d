package callback_test

import (
	"net/url"
	"strings"
	"testing"

	"spendhook/internal/invalid"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/subscriberstest"
)

func normalize(raw string, allowHTTP bool) (string, error) {
	var problems invalid.Error
	normal := callback.Policy{AllowHTTP: allowHTTP}.Normalize(&problems, raw)
	return normal, problems.OrNil()
}

func TestNormalize(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"https://example.com":                    "https://example.com/",
		"https://example.com?":                   "https://example.com/",
		"https://example.com/a?":                 "https://example.com/a",
		"https://example.com?a":                  "https://example.com/?a",
		"https://example.com/":                   "https://example.com/",
		"HTTPS://EXAMPLE.com/Path?Q=A":           "https://example.com/Path?Q=A",
		"https://example.com:443/a":              "https://example.com/a",
		"https://example.com:0443/a":             "https://example.com/a",
		"https://example.com:/a":                 "https://example.com/a",
		"https://example.com:80/a":               "https://example.com:80/a",
		"https://example.com:08443/a":            "https://example.com:8443/a",
		"http://example.com:80/a":                "http://example.com/a",
		"http://example.com:443/a":               "http://example.com:443/a",
		"https://example.com/a#frag":             "https://example.com/a",
		"https://example.com/a#":                 "https://example.com/a",
		"https://example.com./a":                 "https://example.com/a",
		"https://BÜCHER.example/ü":               "https://xn--bcher-kva.example/%C3%BC",
		"https://xn--bcher-kva.example/%C3%BC":   "https://xn--bcher-kva.example/%C3%BC",
		"https://bücher。example/":                "https://xn--bcher-kva.example/",
		"https://b%C3%BCcher.example/":           "https://xn--bcher-kva.example/",
		"https://example.com/?q=ü":               "https://example.com/?q=%C3%BC",
		`https://example.com/?q={"x":1}`:         "https://example.com/?q=%7B%22x%22:1%7D",
		"https://example.com/?q=<b>&r=a|b^c\\`":  "https://example.com/?q=%3Cb%3E&r=a%7Cb%5Ec%5C%60",
		"https://example.com/?q=%7b+a'(*)!$;,/?": "https://example.com/?q=%7b+a'(*)!$;,/?",
		"https://my_host.example/a":              "https://my_host.example/a",
		"https://r3---sn.example/a":              "https://r3---sn.example/a",
		"https://[2001:DB8:0::1]:8443/":          "https://[2001:db8::1]:8443/",
		"https://[2001:db8::1]:443":              "https://[2001:db8::1]/",
		"https://192.0.2.1/":                     "https://192.0.2.1/",
		"https://１９２.0.2.1/":                     "https://192.0.2.1/",
		"https://example.com/a/../b/%7Euser?a=b": "https://example.com/a/../b/%7Euser?a=b",
	} {
		got, err := normalize(raw, true)
		if err != nil || got != want {
			t.Errorf("Normalize(%q) = %q, %v, want %q", raw, got, err, want)
		}
	}
}

func TestNormalizeRefuses(t *testing.T) {
	t.Parallel()
	const bad = "callbackUrl INVALID"
	for raw, want := range map[string]string{
		"":                                           "callbackUrl REQUIRED",
		"https://e.com/" + long(2048):                "callbackUrl TOO_LONG",
		"https://e.com/" + repeat("ü", 1000):         "callbackUrl TOO_LONG", // only once it is encoded
		"example.com/a":                              bad,
		"/a":                                         bad,
		"//example.com/a":                            bad,
		"https:example.com":                          bad,
		"https:///a":                                 bad,
		"https://:443/a":                             bad,
		"http://example.com/a":                       bad, // not allowed here
		"ftp://example.com/a":                        bad,
		"javascript:alert(1)":                        bad,
		"https://user@example.com/":                  bad,
		"https://user:hunter2@example.com/":          bad,
		"https://@example.com/":                      bad,
		" https://example.com/":                      bad,
		"https://example.com/a b":                    bad,
		"https://example.com/a\u00a0b":               bad,
		"https://example.com/a\r\nX: y":              bad,
		"https://example.com/\x00":                   bad,
		"https://example.com/\xff":                   bad,
		"https://example.com/%zz":                    bad,
		"https://example.com:0/":                     bad,
		"https://example.com:65536/":                 bad,
		"https://example.com:x/":                     bad,
		"https://exa mple.com/":                      bad,
		"https://ex%41mple.com/":                     bad,
		"https://exa%20mple.com/":                    bad,
		"https://exa<mple.com/":                      bad,
		"https://example.com\\@evil.com/":            bad,
		"https://a..b/":                              bad,
		"https://example.com../":                     bad,
		"https://" + repeat("a", 64) + ".com/":       bad,
		"https://" + repeat("abcdefg.", 32) + "com/": bad,
		"https://xn--a/":                             bad,
		"https://[fe80::1%25eth0]/":                  bad,
		"https://[::1/":                              bad,
		"https://2130706433/":                        bad,
		"https://127.1/":                             bad,
		"https://0x7f.0x1/":                          bad,
		"https://0177.0.0.1/":                        bad,
		"https://example.1/":                         bad,
	} {
		got, err := normalize(raw, false)
		if err == nil {
			t.Errorf("Normalize(%.60q) = %q, want an error", raw, got)
			continue
		}
		if c := subscriberstest.Codes(t, err); c != want {
			t.Errorf("Normalize(%.60q): %s, want %s", raw, c, want)
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error repeats a password: %v", err)
		}
	}
}

func repeat(s string, n int) string { return strings.Repeat(s, n) }

func long(n int) string { return repeat("a", n) }

func TestURLOfExactly2048Bytes(t *testing.T) {
	t.Parallel()
	raw := "https://example.com/"
	raw += long(2048 - len(raw))
	if _, err := normalize(raw, false); err != nil {
		t.Error(err)
	}
	if _, err := normalize(raw+"a", false); err == nil {
		t.Error("2,049 bytes were accepted")
	}
}

func FuzzNormalize(f *testing.F) {
	for _, seed := range []string{
		"https://EXAMPLE.com:443/a?b#c", "http://bücher.example:80", "https://[::FFFF:1.2.3.4]:1/", "https://xn--bcher-kva.example",
		"https://ex%41mple.com./?ü", "https://１.2.3.4", "https://a\u00adb.example/%2f?%2F", "https://faß.de/?", "https://ｅ.com／x",
	} {
		f.Add(seed, true)
	}
	f.Fuzz(func(t *testing.T, raw string, allowHTTP bool) {
		once, err := normalize(raw, allowHTTP)
		if err != nil {
			return
		}
		twice, err := normalize(once, allowHTTP)
		if err != nil || twice != once {
			t.Fatalf("%q gives %q, and that %q, %v", raw, once, twice, err)
		}
		u, err := url.Parse(once)
		if err != nil || u.Host == "" || u.User != nil || len(once) > 2048 || !printable(once) {
			t.Fatalf("%q gives %q", raw, once)
		}
	})
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}
